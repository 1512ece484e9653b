"""The stage `dpo`: direct preference optimisation on pairs of steps. The work is done by train/dpo.py.

In: a policy and pairs. Out: a policy for which the better step of a pair has become likelier.
"""

from pathlib import Path

from stepladder.core.io.records import read_records
from stepladder.core.trace import Pair
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import StageResult, StageSpec, Task
from stepladder.pipeline.stages.pairs import DEV, PAIRS, TRAIN
from stepladder.pipeline.stages.sft import expect_dev
from stepladder.train.dpo.config import DPOConfig


def run_dpo(settings: DPOConfig, context: RunContext, task: Task) -> StageResult:
    """Train on the pairs of an earlier stage, watch the dev split."""
    from stepladder.train.dpo.trainer import train_dpo  # brings torch, transformers and trl

    pairs = Path(task.inputs[PAIRS])
    report = train_dpo(
        task.inputs["policy"],
        context.agent,
        read_records(pairs / TRAIN, Pair),
        read_records(pairs / DEV, Pair),
        context.all_questions(),
        context.split("dev") if settings.dev_questions else (),
        context.retriever,
        context.episode(),
        settings,
        task.folder,
        seed=task.seed,
        device=context.settings.device,
        dtype=context.settings.dtype,
        max_batch=context.settings.batch,
    )
    return StageResult(report.numbers, {"policy": report.policy})


def check_dpo(settings: DPOConfig, context: RunContext) -> None:
    """There must be questions to choose a checkpoint by, and an index if the agent searches."""
    expect_dev("dpo", settings.dev_questions, context)
    if settings.dev_questions:
        context.check_index()


KIND = StageSpec(DPOConfig, run_dpo, takes=("policy", PAIRS), makes=("policy",), check=check_dpo, idle=DPOConfig.idle)
