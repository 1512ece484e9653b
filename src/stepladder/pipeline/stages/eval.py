"""The stage `eval`: run one episode per question of a split and score the answers.

In: a policy and, for guided inference by a PRM, a reward model. Out: `evaluation/` in the stage's folder (summary, one
row per question, trajectories) and the main metrics.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import Field

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.config import Config
from stepladder.core.trace import StopReason
from stepladder.engines.openai.server_config import POLICY_FILES
from stepladder.evaluation.evaluator import Evaluation, load_scores
from stepladder.pipeline.episodes import evaluate_policy, report_gold
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import EVALUATION, POLICY, REWARD, FinishedStage, StageResult, StageSpec, Task, no_labels
from stepladder.pipeline.stage_summary import StageCost, cost_from_summary
from stepladder.pipeline.workers.rollout_workers import check_cluster


class EvalConfig(Config):
    """Questions and sampling of an evaluation."""

    split: str = "test"
    #: Number of questions, from the start of the split; null is all.
    limit: int | None = Field(default=None, ge=1)
    #: 0 is greedy.
    temperature: float = Field(default=0.0, ge=0)
    #: Guided inference: sample several candidates and let a scorer choose. Its own temperature is used.
    guide: GuideConfig | None = None

    def unused(self) -> Mapping[str, str]:
        """A guide samples with its own temperature."""
        return {} if self.guide is None else {"temperature": "with a guide (set guide.temperature)"}


def run_eval(settings: EvalConfig, context: RunContext, task: Task) -> StageResult:
    """Run the episodes, score them, save everything."""
    questions = context.split(settings.split)[: settings.limit]
    guide, policy = settings.guide, task.inputs[POLICY]
    temperature, top_p = (settings.temperature, 1.0) if guide is None else (guide.temperature, guide.top_p)
    report_gold(context, questions, labels=guide is not None and guide.by == "gold")
    episode = context.episode(temperature, top_p)
    reward = task.inputs.get(REWARD)
    result = evaluate_policy(
        context,
        policy,
        questions,
        episode,
        seed=task.seed,
        label=task.name,
        guide=guide,
        reward=reward,
        folder=task.folder,
    )
    description = {
        "agent": context.agent.name,
        "policy": policy,
        "split": settings.split,
        "limit": settings.limit,
        "seed": task.seed,
        "settings": asdict(episode),
        "guide": None if guide is None else guide.describe(),
    }
    result.save(task.folder / EVALUATION, description, overwrite=True)
    return StageResult({**main_numbers(result), **result.paid}, {EVALUATION: task.folder / EVALUATION})


def main_numbers(result: Evaluation) -> dict[str, Any]:
    """The main metrics of an evaluation."""
    summary = result.summary()
    metrics = summary.metrics
    reached = [row for row in result.scores if row.stop is not StopReason.CANCELLED]
    return {
        "questions": summary.questions,
        "em": asdict(metrics["em"]),
        "f1": asdict(metrics["f1"]),
        "validity": 1 - sum(_outside_format(row) for row in reached) / len(reached),
        "searches": metrics["searches"].mean,
        "by_hops": summary.by_hops,
        "failed": summary.stops.get(StopReason.FAILED.value, 0),
        "upper_bound": result.upper_bound,
    }


def _outside_format(row: QuestionScore) -> bool:
    """Whether an episode is not entirely in the strict format, however it was played."""
    return row.malformed_steps + row.repaired_steps + row.forced > 0


def check_eval(settings: EvalConfig, context: RunContext) -> None:
    """The split must exist, and an index if the agent searches."""
    context.split(settings.split)
    context.check_index()
    context.check_server()
    check_cluster(context)


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
    accepts_server=True,
    persistent_files=POLICY_FILES,
    cost=cost,
    labels=no_labels,
)
