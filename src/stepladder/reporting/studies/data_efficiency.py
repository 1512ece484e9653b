"""How many questions does it take? Reinforcement learning with and without graded steps, from few and from many.

All arms make as many updates from as many episodes; with fewer questions each is played more often. Only the questions
of the reinforcement learning are counted: the policy that all begin with, and the reward model that `dual` asks, have
learnt from others.
"""

from stepladder.reporting.studies.study_spec import Study

SIZES = (32, 64, 128, 256, 512)
MODES = ("outcome", "dual")
#: Enough for every one of the most questions to be played.
UPDATES, EPISODES, SAMPLES = 32, 128, 8


def _changes(mode: str, questions: int) -> tuple[str, ...]:
    epochs = UPDATES * EPISODES / SAMPLES / questions
    return (f"stages.grpo.mode={mode}", f"stages.grpo.questions={questions}", f"stages.grpo.num_train_epochs={epochs}")


STUDY = Study(
    name="data-efficiency",
    about="reinforcement learning from 32 to 512 questions, by the answer alone and with graded steps",
    recipe="prorag-nano",
    changes=(
        "stages.eval-rft.limit=500",
        f"stages.grpo.batch_size={EPISODES}",
        f"stages.grpo.num_generations={SAMPLES}",
        "stages.grpo.gradient_accumulation_steps=2",  # less memory: several runs share a GPU
        "stages.grpo.eval_steps=16",
        "stages.grpo.dev_questions=150",
        "stages.grpo.monitors.stop=false",
        "stages.eval-grpo.limit=500",
    ),
    arms={f"{mode}-{size}": _changes(mode, size) for mode in MODES for size in SIZES},
    shared="eval-rft",
    stage="grpo",
    result="eval-grpo",
    against={f"dual-{size}": f"outcome-{size}" for size in SIZES},
    places={f"{mode}-{size}": (mode, float(size)) for mode in MODES for size in SIZES},
    across="questions to learn from",
)
