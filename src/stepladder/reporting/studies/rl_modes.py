"""GRPO modes: does process supervision help? Five modes from the same policy, with equal questions and updates.

Every update samples the same number of episodes of the same questions. `tree` branches episodes off from others, so it
generates fewer tokens; the table reports how many. The recipe's hyperparameters (advantage baseline, process weight,
learning rate) were tuned for `dual` and `outcome`. `process` has no signal for when to stop searching. `dual-gold`
replaces the reward model by the gold judge: its gap to `dual` is due to the reward model, the rest to the method.
"""

from stepladder.reporting.studies.study_spec import Study

#: Number of updates and of questions; each question is used twice.
UPDATES, QUESTIONS = 200, 800
#: Episodes per update, and per question in an update.
EPISODES, SAMPLES = 64, 8

STUDY = Study(
    name="rl-modes",
    about="GRPO with outcome, process and dual rewards, and with tree rollouts",
    recipe="prorag-nano",
    overrides=(
        "stages.eval-rft.limit=500",
        f"stages.grpo.questions={QUESTIONS}",
        f"stages.grpo.num_train_epochs={UPDATES * EPISODES / SAMPLES / QUESTIONS}",
        f"stages.grpo.batch_size={EPISODES}",
        f"stages.grpo.num_generations={SAMPLES}",
        "stages.grpo.gradient_accumulation_steps=2",  # less memory: several runs share a GPU
        "stages.grpo.eval_steps=25",
        "stages.grpo.dev_questions=150",
        "stages.grpo.monitors.stop=false",  # keep failures visible
        "stages.eval-grpo.limit=500",
    ),
    arms={
        **{mode: (f"stages.grpo.mode={mode}",) for mode in ("outcome", "dual", "process", "tree")},
        "dual-gold": ("stages.grpo.mode=dual", "stages.grpo.scorer=gold"),
    },
    shared="eval-rft",
    stage="grpo",
    result="eval-grpo",
    against={"dual": "outcome", "process": "outcome", "tree": "outcome", "dual-gold": "outcome"},
)
