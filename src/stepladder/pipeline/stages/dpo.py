"""The stage `dpo`: direct preference optimization on pairs of steps, by train/dpo.

In: a policy and pairs. Out: a policy for which the better step of a pair is likelier.
"""

from stepladder.pipeline.pair_folder import PairInputConfig, input_pairs
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import PAIRS, POLICY, StageResult, StageSpec, Task, never, no_labels, no_questions
from stepladder.pipeline.stage_summary import Numbers, StageSummary, measured, unless_zero, updates
from stepladder.preferences.pair_stats import format_counts
from stepladder.train.dpo.config import DPOConfig


class DPOStageConfig(PairInputConfig, DPOConfig):
    """Beside the settings of the trainer, which pairs are taken."""


def run_dpo(settings: DPOStageConfig, context: RunContext, task: Task) -> StageResult:
    """Train on the pairs of an earlier stage; evaluate on the dev split."""
    from stepladder.train.dpo.trainer import train_dpo  # imports torch, transformers and trl

    training = context.training(task, context.all_questions(), dev="dev" if settings.dev_questions else None)
    train, held_out, unmarked = input_pairs(task)
    report = train_dpo(task.inputs[POLICY], training, settings, train, held_out)
    return StageResult({**report.numbers, "excluded_marked": unmarked.excluded}, {POLICY: report.policy})


def check_dpo(settings: DPOConfig, context: RunContext) -> None:
    """Requires a dev split and an index, if checkpoints are evaluated by episodes."""
    context.expect_dev("dpo", settings.dev_questions)
    if settings.dev_questions:
        context.check_index()


def summarize(numbers: Numbers) -> StageSummary:
    """Pairs, held-out accuracy, and the KL to the initial policy."""
    measures = {"dev_accuracy": "accuracy", "dev_reward_gap": "reward gap", "dev_loss": "loss"}
    return (
        f"trained on {numbers['pairs']:,} pairs of {numbers['questions']:,} questions; "
        f"held out {numbers['held_out_pairs']:,}{measured(numbers, measures, ': ')}",
        {
            "updates": updates(numbers),
            "refused": format_counts(numbers["refused"]),
            "marked as wrong, left out": unless_zero(numbers.get("excluded_marked")),
            "dev": measured(numbers, {"dev_f1": "F1", "dev_kl": "KL per token to the initial policy"}),
        },
    )


STAGE = StageSpec(
    DPOStageConfig,
    run_dpo,
    (POLICY, PAIRS),
    (POLICY,),
    trains=True,
    check=check_dpo,
    summarize=summarize,
    questions=no_questions,
    labels=no_labels,
    generates=never,
)
