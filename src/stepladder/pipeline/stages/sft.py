"""The stage `sft`: the warm-up, supervised fine-tuning on transcripts. The work is done by train/sft.py.

In: a policy and, where these are imitated, trees. Out: a policy that has learnt the agent's format and to search step
by step.
"""

from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import StageResult, StageSpec, Task
from stepladder.pipeline.tree_search import TREES
from stepladder.train.sft.config import SFTConfig


def run_sft(settings: SFTConfig, context: RunContext, task: Task) -> StageResult:
    """Train on the train split, watch the dev split."""
    from stepladder.train.sft.trainer import train_sft  # brings torch and transformers

    report = train_sft(
        task.inputs["policy"],
        context.agent,
        context.shown(),
        context.split("dev") if settings.dev_questions else (),
        context.retriever,
        context.episode(),
        settings,
        task.folder,
        seed=task.seed,
        device=context.settings.device,
        dtype=context.settings.dtype,
        max_batch=context.settings.batch,
        trees=Path(task.inputs[TREES]) if TREES in task.inputs else None,
    )
    return StageResult(report.summary(), {"policy": report.policy})


def check_sft(settings: SFTConfig, context: RunContext) -> None:
    """There must be questions to train on, others to choose a checkpoint by, and an index if the agent searches."""
    context.shown()
    expect_dev("sft", settings.dev_questions, context)
    context.check_index()


def expect_dev(kind: str, questions: int, context: RunContext) -> None:
    """Raise where a stage wants dev questions and there are none."""
    if questions and "dev" not in context.data.questions:
        raise StepladderError(
            f"{kind} chooses a checkpoint by {questions} dev questions, and the data has no dev split: "
            "give one (--dev, in a recipe data.dev), or set dev_questions to 0"
        )


KIND = StageSpec(
    SFTConfig,
    run_sft,
    takes=("policy", TREES),
    makes=("policy",),
    check=check_sft,
    leaves_out=lambda settings: frozenset() if settings.source == "trees" else frozenset({TREES}),
    keeps=("teacher.jsonl",),
    idle=SFTConfig.idle,
)
