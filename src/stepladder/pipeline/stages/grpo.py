"""The stage `grpo`: reinforcement learning with step-level advantages, by train/grpo.

In: a policy and, if steps are scored by one, a reward model. Out: a policy trained on its own episodes.
"""

from collections.abc import Iterable
from importlib.util import find_spec

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.pipeline.episodes import check_gold
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import (
    POLICY,
    REWARD,
    FinishedStage,
    Labels,
    StageResult,
    StageSpec,
    Task,
    sampled_questions,
)
from stepladder.pipeline.stage_summary import Numbers, StageSummary, measured, updates
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import Need
from stepladder.train.grpo.credit.requirements import check_questions


def run_grpo(settings: GRPOConfig, context: RunContext, task: Task) -> StageResult:
    """Run episodes of the train split and reinforce the better ones; evaluate on another split."""
    from stepladder.train.grpo.trainer import train_grpo  # imports torch, transformers and trl

    scorer = None
    if settings.scores_steps:
        options = {"retokenize": settings.retokenize, "derived": settings.derived}
        scorer = context.scorer(settings.scorer, task.inputs.get(REWARD), **options)
    training = context.training(task, dev=settings.eval_split if settings.dev_questions else None)
    report = train_grpo(task.inputs[POLICY], training, settings, scorer)
    return StageResult(report.numbers, {POLICY: report.policy})


def check_grpo(settings: GRPOConfig, context: RunContext) -> None:
    """Requires answers, what the estimator needs of questions, a dev split if checkpoints are evaluated, an index if it
    searches, vLLM if it generates, and an agent with one context per episode.
    """
    from stepladder.train.grpo.rollouts import check_single_context

    check_single_context(context.agent)
    if settings.engine == "vllm" and find_spec("vllm") is None:
        raise StepladderError(
            f"engine: vllm of a grpo stage needs vLLM, which is not installed: {install_command('vllm')}, or set "
            "engine: transformers"
        )
    context.expect_answers("train")
    questions = [each for each in context.split("train") if each.answers]
    check_questions(questions, settings)
    if _reads_gold(settings):
        check_gold(context, questions)
    context.expect_dev("grpo", settings.dev_questions, settings.eval_split)


def _reads_gold(settings: GRPOConfig) -> bool:
    """Whether credit reads gold decompositions or passages, which the index must therefore have."""
    by_search = {Need.GOLD_PASSAGES, Need.DISTANCES}
    return bool(by_search & settings.needs) or (settings.scores_steps and settings.scorer == "gold")


def summarize(numbers: Numbers) -> StageSummary:
    """Episodes, rewards at the start and at the end, where the time went, alarms."""
    ended = ""
    if numbers["stopped_by"]:
        ended = f"; stopped by {numbers['stopped_by']}, update {numbers['kept_update']:,} kept"
    elif numbers["out_of_time"]:
        ended = "; stopped by the time limit"
    elif numbers.get("out_of_tokens"):
        ended = "; stopped by the token budget"
    no_signal = f"{numbers['dropped_groups']:.0%}: all episodes of a group had the same reward"
    parts = ("sync", "rollout", "scoring", "update")
    seconds = {part: numbers[f"{part}_seconds"] for part in parts if f"{part}_seconds" in numbers}
    return (
        f"{numbers['mode']}: {numbers['episodes']:,} episodes of {numbers['questions']:,} questions, "
        f"{numbers['tokens_sampled']:,} tokens sampled; F1 of episodes {numbers['first_f1']:.2f} -> "
        f"{numbers['last_f1']:.2f}, reward {numbers['first_reward']:.2f} -> {numbers['last_reward']:.2f}{ended}",
        {
            "updates": updates(numbers),
            "groups without signal": no_signal if numbers["dropped_groups"] else "",
            "groups replaced": f"{numbers['refilled_groups']:,}" if numbers.get("refilled_groups") else "",
            "seconds": ", ".join(f"{part} {spent:.0f}" for part, spent in seconds.items()),
            "dev": measured(numbers, {"best_dev_f1": "F1"}),
            "alarms": ", ".join(numbers["alarms"]),
        },
    )


def questions_used(stage: FinishedStage) -> Iterable[str]:
    """The questions that were rolled out before the stage ended; if groups were replaced, all that may have been."""
    settings: GRPOConfig = stage.settings
    chosen = sampled_questions(stage, [each for each in stage.context.split("train") if each.answers])
    episodes = stage.summary.get("episodes")
    if not isinstance(episodes, int):
        raise StepladderError("the summary of this stage does not say how many episodes were rolled out")
    groups = episodes // settings.num_generations
    if groups < len(chosen) and not stage.summary.get("refilled_groups"):  # the first groups are of distinct questions
        from stepladder.train.grpo.trainer import schedule  # imports torch and trl

        order, _ = schedule(len(chosen), settings, stage.seed)
        chosen = [chosen[place] for place in order[:groups]]
    return chosen


def labels_used(stage: FinishedStage) -> Labels:
    """The answers; and the decompositions or gold passages, if the gold judge or a potential reads them."""
    return Labels.of(questions_used(stage), decompositions=_reads_gold(stage.settings))


STAGE = StageSpec(
    GRPOConfig,
    run_grpo,
    (POLICY, REWARD),
    (POLICY,),
    unused_inputs=lambda settings: frozenset(() if settings.needs_reward_model else {REWARD}),
    trains=True,
    check=check_grpo,
    not_fingerprinted=frozenset({"engine", "vllm_gpu_memory_utilization"}),
    summarize=summarize,
    questions=questions_used,
    labels=labels_used,
)
