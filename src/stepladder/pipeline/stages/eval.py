"""The stage `eval`: run one episode per question of a split and score the answers.

In: a policy and, for guided inference by a PRM, a reward model. Out: `evaluation/` in the stage's folder (summary, one
row per question, trajectories) and the main metrics.
"""

from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.trace import StopReason
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.evaluation.evaluator import Summary, evaluate, load_scores
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import EVALUATION, POLICY, REWARD, FinishedStage, StageResult, StageSpec, Task
from stepladder.pipeline.stage_summary import StageCost, cost_from_summary


class EvalConfig(Config):
    """Questions and sampling of an evaluation."""

    split: str = "test"
    #: Number of questions, from the start of the split; null is all.
    limit: int | None = Field(default=None, ge=1)
    #: 0 is greedy.
    temperature: float = Field(default=0.0, ge=0)
    #: Guided inference: sample several candidates and let a scorer choose. Its own temperature is used.
    guide: GuideConfig | None = None


def run_eval(settings: EvalConfig, context: RunContext, task: Task) -> StageResult:
    """Run the episodes, score them, save everything."""
    questions = context.split(settings.split)[: settings.limit]
    shared, guide = context.settings, settings.guide
    temperature, top_p = (settings.temperature, 1.0) if guide is None else (guide.temperature, guide.top_p)
    episode = context.episode(temperature, top_p)
    with (
        context.engine(task.inputs["policy"]) as engine,
        guide.scorer(task.inputs.get(REWARD), shared.device, shared.dtype) if guide else nullcontext() as scorer,
        Progress(task.name, len(questions)) as watch,
    ):
        driver = Driver(engine, context.retriever, scorer)
        chosen_by = guide.guide() if guide is not None else None
        result = evaluate(driver, context.agent, questions, episode, guide=chosen_by, seed=task.seed, watch=watch)
    if result.stopped_by is not None:
        raise result.stopped_by
    summary = result.summary()
    if summary.stops.get(StopReason.FAILED.value) == summary.questions:
        raise StepladderError(f"{task.name}: every episode failed: {next(iter(summary.failures))}")
    description = {
        "agent": context.agent.name,
        "policy": task.inputs["policy"],
        "split": settings.split,
        "limit": settings.limit,
        "seed": task.seed,
        "settings": asdict(episode),
        "guide": None if guide is None else guide.describe(),
    }
    result.save(task.folder / EVALUATION, description, overwrite=True)
    return StageResult(main_numbers(summary), {EVALUATION: task.folder / EVALUATION})


def main_numbers(summary: Summary) -> dict[str, Any]:
    """The main metrics of an evaluation."""
    metrics = summary.metrics
    return {
        "questions": summary.questions,
        "em": asdict(metrics["em"]),
        "f1": asdict(metrics["f1"]),
        "validity": 1 - metrics["malformed"].mean,
        "searches": metrics["searches"].mean,
        "by_hops": summary.by_hops,
        "failed": summary.stops.get(StopReason.FAILED.value, 0),
    }


def check_eval(settings: EvalConfig, context: RunContext) -> None:
    """The split must exist, and an index if the agent searches."""
    context.split(settings.split)
    context.check_index()


def cost(stage: FinishedStage) -> StageCost:
    """Searches and tokens, added up over the questions. Zero tokens means that the engine does not count them."""
    rows = load_scores(stage.outputs[EVALUATION])
    return replace(
        cost_from_summary(stage),
        searches=sum(row.searches for row in rows),
        tokens_read=sum(row.tokens_read for row in rows) or None,
        tokens_written=sum(row.tokens_written for row in rows) or None,
    )


STAGE = StageSpec(
    EvalConfig,
    run_eval,
    (POLICY, REWARD),
    (EVALUATION,),
    unused_inputs=lambda settings: frozenset(() if settings.guide and settings.guide.by == "prm" else {REWARD}),
    check=check_eval,
    accepts_oracle=True,
    cost=cost,
)
