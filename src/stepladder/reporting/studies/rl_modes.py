"""Does it help to grade steps? Reinforcement learning from one policy in five ways, with equal questions and updates.

Every update plays as many episodes of the same questions. `tree` branches some of them off from others, so it writes
fewer tokens; the table says how many. The recipe's settings (what steps are measured against, the weight of their
scores, the learning rate) were chosen with `dual` and `outcome` in view; `process` has nothing that tells it when to
stop searching. In `dual-gold` the gold judge stands in for the reward model: what is missing there is the method's, and
what lies between it and `dual` is the reward model's.
"""

from stepladder.reporting.studies.study_spec import Study

#: Updates, and questions of which each is played twice.
UPDATES, QUESTIONS = 200, 800
#: Episodes an update, and of each question in it.
EPISODES, SAMPLES = 64, 8

STUDY = Study(
    name="rl-modes",
    about="reinforcement learning from the answer and the steps, from the answer, from the steps, and from trees",
    recipe="prorag-nano",
    changes=(
        "stages.eval-rft.limit=500",
        f"stages.grpo.questions={QUESTIONS}",
        f"stages.grpo.num_train_epochs={UPDATES * EPISODES / SAMPLES / QUESTIONS}",
        f"stages.grpo.batch_size={EPISODES}",
        f"stages.grpo.num_generations={SAMPLES}",
        "stages.grpo.gradient_accumulation_steps=2",  # less memory: several runs share a GPU
        "stages.grpo.eval_steps=25",
        "stages.grpo.dev_questions=150",
        "stages.grpo.monitors.stop=false",  # what goes wrong is to be seen
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
