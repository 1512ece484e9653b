"""The stage `rft`: rejection-sampling fine-tuning, by train/rft.

In: a policy and, unless the threshold is null, a reward model. Out: a policy fine-tuned on its own good transcripts.
"""

from collections.abc import Iterable
from functools import partial

from stepladder.core.errors import StepladderError
from stepladder.engines.openai.server_config import POLICY_FILES
from stepladder.pipeline.resources import SERVER, RunContext
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
from stepladder.pipeline.stage_summary import Numbers, StageSummary, measured, unless_zero, updates
from stepladder.pipeline.workers.rollout_workers import check_cluster, open_driver
from stepladder.preferences.pair_stats import format_counts
from stepladder.train.rft.config import RFTConfig
from stepladder.train.rft.filters import FILTERS


def run_rft(settings: RFTConfig, context: RunContext, task: Task) -> StageResult:
    """Sample the train split, filter, fine-tune; evaluate on the dev split."""
    from stepladder.train.rft.trainer import Sampler, train_rft  # imports torch and transformers

    scorer = None
    if settings.threshold is not None:
        scorer = context.scorer("prm", task.inputs[REWARD], retokenize=settings.retokenize)
    sampler = None
    if settings.sampled_by == "server":
        sampler = Sampler(partial(context.engine, SERVER, folder=task.folder), context.agent_of(SERVER))
    elif context.settings.ray is not None:
        sampler = Sampler(partial(open_driver, context, task.inputs[POLICY]), context.agent)
    training = context.training(task, dev="dev" if settings.dev_questions else None)
    report = train_rft(task.inputs[POLICY], training, settings, scorer, sampler)
    return StageResult(report.numbers, {POLICY: report.policy})


def check_rft(settings: RFTConfig, context: RunContext) -> None:
    """Requires answers, a dev split if checkpoints are evaluated, and an index if the agent searches."""
    context.expect_answers("train")
    context.expect_dev("rft", settings.dev_questions)
    check_cluster(context)
    if settings.sampled_by == "server":
        if context.settings.server is None:
            raise StepladderError("sampled_by: server needs the recipe's server: server.model and server.base_url")
        context.check_server()


#: How many samples are left after each filter.
_LEFT = {
    "answered": "answered",
    "right_answer": "with a right answer",
    "solved_share": "of questions of the wanted difficulty",
    "supported": "supported by passages",
    "good_steps": "with good steps only",
    "distinct": "distinct",
    "kept": "kept",
}


def summarize(numbers: Numbers) -> StageSummary:
    """What each filter left, and where rejected episodes went wrong first."""
    unused = {name for name in ("solved_share", "supported") if numbers.get(name) in (None, numbers["right_answer"])}
    left = "".join(f" -> {numbers[name]:,} {_LEFT[name]}" for name in FILTERS if name not in unused)
    first_bad = {f"step {step}": count for step, count in numbers["first_bad_step"].items()}
    return (
        f"{numbers['sampled']:,} episodes of {numbers['questions']:,} questions sampled, "
        f"{numbers['tokens_sampled']:,} tokens{left}",
        {
            "first bad step": format_counts(first_bad),
            "its kind": format_counts(numbers["first_bad_kind"]),
            "failed episodes": unless_zero(numbers["broken"]),
            "too long to train on": unless_zero(numbers["skipped_too_long"]),
            "updates": updates(numbers),
            "dev": measured(numbers, {"best_dev_f1": "F1"}),
        },
    )


def questions_used(stage: FinishedStage) -> Iterable[str]:
    """The sampled questions."""
    return sampled_questions(stage, [each for each in stage.context.split("train") if each.answers])


STAGE = StageSpec(
    RFTConfig,
    run_rft,
    (POLICY, REWARD),
    (POLICY,),
    unused_inputs=lambda settings: frozenset({REWARD} if settings.threshold is None else ()),
    trains=True,
    check=check_rft,
    persistent_files=POLICY_FILES,
    summarize=summarize,
    questions=questions_used,
    labels=lambda stage: Labels.of(questions_used(stage)),
)
