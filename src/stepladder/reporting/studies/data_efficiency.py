"""Data efficiency: GRPO from 32 to 512 questions, with outcome rewards only and with process rewards.

All arms make the same number of updates from the same number of episodes; with fewer questions, each is sampled more
often. Only the GRPO questions are counted: the initial policy and the reward model of `dual` were trained on others.
"""

from stepladder.reporting.studies.study_spec import Study

SIZES = (32, 64, 128, 256, 512)
MODES = ("outcome", "dual")
#: Enough for every question of the largest arm to be used once.
UPDATES, EPISODES, SAMPLES = 32, 128, 8


def _overrides(mode: str, questions: int) -> tuple[str, ...]:
    epochs = UPDATES * EPISODES / SAMPLES / questions
    return (f"stages.grpo.mode={mode}", f"stages.grpo.questions={questions}", f"stages.grpo.num_train_epochs={epochs}")


STUDY = Study(
    name="data-efficiency",
    about="GRPO from 32 to 512 questions, with outcome rewards only and with process rewards",
    recipe="prorag-nano",
    overrides=(
        "stages.eval-rft.limit=500",
        f"stages.grpo.batch_size={EPISODES}",
        f"stages.grpo.num_generations={SAMPLES}",
        "stages.grpo.gradient_accumulation_steps=2",  # less memory: several runs share a GPU
        "stages.grpo.eval_steps=16",
        "stages.grpo.dev_questions=150",
        "stages.grpo.monitors.stop=false",
        "stages.eval-grpo.limit=500",
    ),
    arms={f"{mode}-{size}": _overrides(mode, size) for mode in MODES for size in SIZES},
    shared="eval-rft",
    stage="grpo",
    result="eval-grpo",
    against={f"dual-{size}": f"outcome-{size}" for size in SIZES},
    points={f"{mode}-{size}": (mode, float(size)) for mode in MODES for size in SIZES},
    x_label="GRPO questions",
)
