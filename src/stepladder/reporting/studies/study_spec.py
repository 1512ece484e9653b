"""The definition of a study, a recipe in several variants (arms), each with several seeds; and the built-in studies.

The stages that all arms share are computed once per seed. Two arms of the same seed start from the same policy, so they
can be compared paired by seed. The studies of GRPO ask whether process supervision helps, and how many questions it
takes:

rl-modes         Five modes from the same policy, with equal questions and updates. Every update samples the same number
                 of episodes of the same questions. `tree` branches episodes off from others, so it generates fewer
                 tokens; the table reports how many. The recipe's hyperparameters (advantage baseline, process weight,
                 learning rate) were tuned for `dual` and `outcome`. `process` has no signal for when to stop searching.
                 `dual-gold` replaces the reward model by the gold judge: its gap to `dual` is due to the reward model,
                 the rest to the method.
data-efficiency  32 to 512 questions, with outcome rewards only and with process rewards. All arms make the same number
                 of updates from the same number of episodes; with fewer questions, each is sampled more often. Only the
                 GRPO questions are counted: the initial policy and the reward model of `dual` were trained on others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from stepladder.core.errors import unknown_name

#: Episodes per question in an update.
_SAMPLES = 8
_SIZES = (32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Study:
    """Variants of a recipe to compare."""

    name: str
    #: The question it answers, in one sentence.
    about: str
    #: Name of a built-in recipe.
    recipe: str
    #: Overrides of the recipe by arm, in the form of `--set`.
    arms: Mapping[str, tuple[str, ...]]
    #: The last stage that all arms share: an evaluation on the same questions as `result`.
    shared: str
    #: The stage in which the arms differ, and whose curves are plotted.
    stage: str
    #: The final evaluation.
    result: str
    #: The arm that each arm is compared with.
    against: Mapping[str, str]
    #: Overrides for all arms and for the shared stages.
    overrides: tuple[str, ...] = ()
    #: If the arms are points on curves: (curve, x) by arm.
    points: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    #: Label of the x axis of these curves.
    x_label: str = ""


_study = partial(Study, recipe="prorag-nano", shared="eval-rft", stage="grpo", result="eval-grpo")


def _overrides(episodes: int, eval_steps: int) -> tuple[str, ...]:
    """The settings that all arms of a study share. `episodes`: per update."""
    return (
        "stages.eval-rft.limit=500",
        f"stages.grpo.batch_size={episodes}",
        f"stages.grpo.num_generations={_SAMPLES}",
        "stages.grpo.gradient_accumulation_steps=2",  # less memory: several runs share a GPU
        f"stages.grpo.eval_steps={eval_steps}",
        "stages.grpo.dev_questions=150",
        "stages.grpo.monitors.stop=false",  # keep failures visible
        "stages.eval-grpo.limit=500",
    )


def _questions(count: int, updates: int, episodes: int) -> tuple[str, str]:
    """So many questions, used as often as the updates need."""
    epochs = updates * episodes / _SAMPLES / count
    return f"stages.grpo.questions={count}", f"stages.grpo.num_train_epochs={epochs}"


_RL_MODES = _study(
    name="rl-modes",
    about="GRPO with outcome, process and dual rewards, and with tree rollouts",
    overrides=(*_overrides(episodes=64, eval_steps=25), *_questions(800, updates=200, episodes=64)),
    arms={
        **{mode: (f"stages.grpo.mode={mode}",) for mode in ("outcome", "dual", "process", "tree")},
        "dual-gold": ("stages.grpo.mode=dual", "stages.grpo.scorer=gold"),
    },
    against=dict.fromkeys(("dual", "process", "tree", "dual-gold"), "outcome"),
)

_POINTS = {f"{mode}-{size}": (mode, size) for mode in ("outcome", "dual") for size in _SIZES}
_DATA_EFFICIENCY = _study(
    name="data-efficiency",
    about="GRPO from 32 to 512 questions, with outcome rewards only and with process rewards",
    overrides=_overrides(episodes=128, eval_steps=16),
    arms={
        arm: (f"stages.grpo.mode={mode}", *_questions(size, updates=32, episodes=128))
        for arm, (mode, size) in _POINTS.items()
    },
    against={f"dual-{size}": f"outcome-{size}" for size in _SIZES},
    points=_POINTS,
    x_label="GRPO questions",
)

STUDIES: dict[str, Study] = {study.name: study for study in (_RL_MODES, _DATA_EFFICIENCY)}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    return STUDIES[name]
