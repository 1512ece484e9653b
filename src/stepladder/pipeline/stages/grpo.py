"""The stage `grpo`: reinforcement learning with graded steps. The work is done by train/grpo.py.

In: a policy and, where steps are scored by one, a reward model. Out: a policy that has learnt from its own episodes.
"""

from stepladder.core.errors import StepladderError
from stepladder.oracle.step_judge import GoldLogits
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import REWARD, StageResult, StageSpec, Task
from stepladder.pipeline.stages.sft import expect_dev
from stepladder.train.grpo.config import GRPOConfig


def run_grpo(settings: GRPOConfig, context: RunContext, task: Task) -> StageResult:
    """Play the train split, learn from what was earned; watch the dev split."""
    from stepladder.judges.prm.reward_model import ProcessRewardModel
    from stepladder.train.grpo.rollouts import StepScorer
    from stepladder.train.grpo.trainer import train_grpo  # brings torch, transformers and trl

    shared = context.settings
    reward: StepScorer | None = GoldLogits() if settings.scores_steps else None
    if settings.needs_reward_model:
        reward = ProcessRewardModel.load(
            task.inputs[REWARD], device=shared.device, dtype=shared.dtype, reencode=settings.reencode
        )
    report = train_grpo(
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


def check_grpo(settings: GRPOConfig, context: RunContext) -> None:
    """There must be questions with answers, others to choose a checkpoint by, an agent whose episodes are one text, and
    an index if it searches.
    """
    if not any(question.answers for question in context.split("train")):
        raise StepladderError("no question of the split 'train' has an answer: nothing could be earned")
    if settings.scores_steps and settings.grader == "gold" and not any(each.hops for each in context.split("train")):
        raise StepladderError("grader: gold needs questions with a gold decomposition, and the split 'train' has none")
    from stepladder.train.grpo.rollouts import expect_one_text

    expect_dev("grpo", settings.dev_questions, context)
    expect_one_text(context.agent)
    context.check_index()


def _left_out(settings: GRPOConfig) -> frozenset[str]:
    return frozenset(() if settings.needs_reward_model else {REWARD})


KIND = StageSpec(
    GRPOConfig,
    run_grpo,
    takes=("policy", REWARD),
    makes=("policy",),
    check=check_grpo,
    leaves_out=_left_out,
    free=frozenset({"engine", "vllm_memory"}),
    idle=GRPOConfig.idle,
)
