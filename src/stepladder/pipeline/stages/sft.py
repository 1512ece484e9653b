"""The stage `sft`: supervised fine-tuning on demonstrations (the warm-up), by train/sft.

In: a policy and, with `source: trees`, search trees. Out: a policy that follows the agent's format and searches.
"""

from collections.abc import Iterable
from pathlib import Path

from stepladder.pipeline.episodes import check_gold, report_gold
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import (
    POLICY,
    TREES,
    FinishedStage,
    Labels,
    StageResult,
    StageSpec,
    Task,
    sampled_questions,
    tree_questions,
)
from stepladder.train.sft.config import TEACHER_FILES, SFTConfig


def run_sft(settings: SFTConfig, context: RunContext, task: Task) -> StageResult:
    """Fine-tune on demonstrations of the train split; evaluate on the dev split."""
    from stepladder.train.sft.trainer import train_sft  # imports torch and transformers

    questions = context.sft_questions()
    if settings.source == "gold":
        report_gold(context, questions, labels=True)
    training = context.training(task, questions, dev="dev" if settings.dev_questions else None)
    trees = Path(task.inputs[TREES]) if TREES in task.inputs else None
    report = train_sft(task.inputs[POLICY], training, settings, trees)
    return StageResult(report.numbers, {POLICY: report.policy})


def check_sft(settings: SFTConfig, context: RunContext) -> None:
    """Requires train questions, a dev split if checkpoints are evaluated, and an index if the agent searches.

    For gold demonstrations the index must have most gold passages.
    """
    settings.check_price()
    questions = context.sft_questions()
    context.expect_dev("sft", settings.dev_questions)
    context.check_index()
    if settings.source == "gold":
        check_gold(context, questions)
    if settings.source == "bootstrap" and settings.format == "constrained":
        from stepladder.engines.transformers.constrained import import_llguidance

        import_llguidance()


def questions_used(stage: FinishedStage) -> Iterable[str]:
    """The questions of the demonstrations, except those of trees."""
    return () if stage.settings.source == "trees" else sampled_questions(stage, stage.context.sft_questions())


def labels_used(stage: FinishedStage) -> Labels:
    """The answers that demonstrations end with, and the decompositions that the oracle replays."""
    source = stage.settings.source
    if source == "trees":
        return Labels.of(tree_questions(stage.inputs[TREES]))
    return Labels.of(questions_used(stage), decompositions=source == "gold")


STAGE = StageSpec(
    SFTConfig,
    run_sft,
    (POLICY, TREES),
    (POLICY,),
    unused_inputs=lambda settings: frozenset() if settings.source == "trees" else frozenset({TREES}),
    trains=True,
    check=check_sft,
    persistent_files=TEACHER_FILES,
    questions=questions_used,
    labels=labels_used,
    generates=lambda settings: settings.source not in ("gold", "trees"),
)
