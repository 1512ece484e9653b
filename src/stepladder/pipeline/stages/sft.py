"""The stage `sft`: the warm-up, supervised fine-tuning on transcripts. The work is done by train/sft.py.

In: a policy and, where these are imitated, trees. Out: a policy that has learnt the agent's format and to search step
by step.
"""

from collections.abc import Iterable
from pathlib import Path

from stepladder.data.sampling import sample_questions
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import POLICY, TREES, FinishedStage, StageResult, StageSpec, Task, expect_dev
from stepladder.train.sft.config import SFTConfig


def run_sft(settings: SFTConfig, context: RunContext, task: Task) -> StageResult:
    """Train on the train split, watch the dev split."""
    from stepladder.train.sft.trainer import train_sft  # brings torch and transformers

    report = train_sft(
        task.inputs["policy"],
        context.agent,
        context.sft_questions(),
        context.split("dev") if settings.dev_questions else (),
        context.retriever,
        context.episode(),
        settings,
        task.folder,
        seed=task.seed,
        device=context.settings.device,
        dtype=context.settings.dtype,
        max_batch=context.settings.batch_size,
        trees=Path(task.inputs[TREES]) if TREES in task.inputs else None,
    )
    return StageResult(report.summary(), {"policy": report.policy})


def check_sft(settings: SFTConfig, context: RunContext) -> None:
    """There must be questions to train on, others to choose a checkpoint by, and an index if the agent searches."""
    context.sft_questions()
    expect_dev("sft", settings.dev_questions, context)
    context.check_index()


def questions_used(stage: FinishedStage) -> Iterable[str]:
    """The questions of the demonstrations, except those of trees."""
    settings: SFTConfig = stage.settings
    if settings.source == "trees":
        return ()
    return (each.id for each in sample_questions(stage.context.sft_questions(), settings.questions, stage.seed, balance=settings.balance))


STAGE = StageSpec(
    SFTConfig,
    run_sft,
    inputs=(POLICY, TREES),
    outputs=(POLICY,),
    check=check_sft,
    questions=questions_used,
    generates=lambda settings: settings.source not in ("gold", "trees"),
    unused_inputs=lambda settings: frozenset() if settings.source == "trees" else frozenset({TREES}),
    persistent_files=("teacher.jsonl",),
    inert=SFTConfig.inert,
)
