"""The stage `rft`: refinement by rejection sampling. The work is done by train/rft.py.

In: a policy and, unless there is no threshold, a reward model. Out: a policy that has learnt from its own good
transcripts.
"""

from stepladder.core.errors import StepladderError
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import REWARD, StageResult, StageSpec, Task
from stepladder.pipeline.stages.sft import expect_dev
from stepladder.train.rft.config import RFTConfig


def run_rft(settings: RFTConfig, context: RunContext, task: Task) -> StageResult:
    """Sample the train split, keep what is right in every step, train on it; watch the dev split."""
    from stepladder.judges.prm.reward_model import ProcessRewardModel  # brings torch and transformers
    from stepladder.train.rft.trainer import train_rft

    shared = context.settings
    reward = None
    if settings.threshold is not None:
        reward = ProcessRewardModel.load(
            task.inputs[REWARD], device=shared.device, dtype=shared.dtype, reencode=settings.reencode
        )
    report = train_rft(
        task.inputs["policy"],
        context.agent,
        context.split("train"),
        context.split("dev") if settings.dev_questions else (),
        context.retriever,
        context.episode(),
        reward,
        settings,
        task.folder,
        seed=task.seed,
        device=shared.device,
        dtype=shared.dtype,
        max_batch=shared.batch,
    )
    return StageResult(report.numbers, {"policy": report.policy})


def check_rft(settings: RFTConfig, context: RunContext) -> None:
    """There must be questions with answers, others to choose a checkpoint by, and an index if the agent searches."""
    if not any(question.answers for question in context.split("train")):
        raise StepladderError("no question of the split 'train' has an answer: no sample could be found right")
    expect_dev("rft", settings.dev_questions, context)
    context.check_index()


def _left_out(settings: RFTConfig) -> frozenset[str]:
    return frozenset({REWARD} if settings.threshold is None else ())


KIND = StageSpec(
    RFTConfig,
    run_rft,
    takes=("policy", REWARD),
    makes=("policy",),
    check=check_rft,
    leaves_out=_left_out,
    idle=RFTConfig.idle,
)
