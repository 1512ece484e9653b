"""Studies of GRPO: does process supervision help, and how many questions does it take?

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

from functools import partial

from stepladder.reporting.studies.study_spec import Study

#: Episodes per question in an update.
SAMPLES = 8
SIZES = (32, 64, 128, 256, 512)

_study = partial(Study, recipe="prorag-nano", shared="eval-rft", stage="grpo", result="eval-grpo")


def _overrides(episodes: int, eval_steps: int) -> tuple[str, ...]:
    """The settings that all arms of a study share. `episodes`: per update."""
    return (
        "stages.eval-rft.limit=500",
        f"stages.grpo.batch_size={episodes}",
        f"stages.grpo.num_generations={SAMPLES}",
        "stages.grpo.gradient_accumulation_steps=2",  # less memory: several runs share a GPU
        f"stages.grpo.eval_steps={eval_steps}",
        "stages.grpo.dev_questions=150",
        "stages.grpo.monitors.stop=false",  # keep failures visible
        "stages.eval-grpo.limit=500",
    )


def _questions(count: int, updates: int, episodes: int) -> tuple[str, str]:
    """So many questions, used as often as the updates need."""
    epochs = updates * episodes / SAMPLES / count
    return f"stages.grpo.questions={count}", f"stages.grpo.num_train_epochs={epochs}"


RL_MODES = _study(
    name="rl-modes",
    about="GRPO with outcome, process and dual rewards, and with tree rollouts",
    overrides=(*_overrides(episodes=64, eval_steps=25), *_questions(800, updates=200, episodes=64)),
    arms={
        **{mode: (f"stages.grpo.mode={mode}",) for mode in ("outcome", "dual", "process", "tree")},
        "dual-gold": ("stages.grpo.mode=dual", "stages.grpo.scorer=gold"),
    },
    against=dict.fromkeys(("dual", "process", "tree", "dual-gold"), "outcome"),
)

_POINTS = {f"{mode}-{size}": (mode, size) for mode in ("outcome", "dual") for size in SIZES}
DATA_EFFICIENCY = _study(
    name="data-efficiency",
    about="GRPO from 32 to 512 questions, with outcome rewards only and with process rewards",
    overrides=_overrides(episodes=128, eval_steps=16),
    arms={
        arm: (f"stages.grpo.mode={mode}", *_questions(size, updates=32, episodes=128))
        for arm, (mode, size) in _POINTS.items()
    },
    against={f"dual-{size}": f"outcome-{size}" for size in SIZES},
    points=_POINTS,
    x_label="GRPO questions",
)
