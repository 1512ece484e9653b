"""Episodes of a policy: evaluated, or sampled by a stage so that their steps can be judged.

In: a policy and questions. Out: an `Evaluation`, or trajectories, which are stored in the stage's `episodes/`. After a
kill, stored episodes are not sampled again; several processes sample a share each. Before that, `report_gold` prints
how many gold passages the index has.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, Trajectory
from stepladder.driver.progress import Progress
from stepladder.evaluation.evaluator import Evaluation, check_played, evaluate
from stepladder.evaluation.gold_coverage import GoldCoverage, gold_coverage
from stepladder.explore.episode import EpisodeConfig
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.resources import ORACLE, SERVER, RunContext, paid_by
from stepladder.pipeline.stage import POLICY, Task
from stepladder.pipeline.workers.rollout_workers import open_driver


def report_gold(context: RunContext, questions: Sequence[Question], *, labels: bool) -> None:
    """Print how many gold passages the index has; raise if steps are to be labelled and most are missing."""
    if (coverage := _count_gold(context, questions)) is not None:
        if labels:
            coverage.check()
        line = coverage.line() + coverage.warning()
        context.console.print(line, highlight=False, markup=False, soft_wrap=True)


def check_gold(context: RunContext, questions: Sequence[Question]) -> None:
    """Raise if steps are to be labelled and an index other than the data set's own lacks most gold passages."""
    if context.settings.data.index is not None and (coverage := _count_gold(context, questions)) is not None:
        coverage.check()


def _count_gold(context: RunContext, questions: Sequence[Question]) -> GoldCoverage | None:
    if context.retriever is None:
        return None
    own = context.data.passages if context.settings.data.index is None else None
    return gold_coverage(questions, context.retriever, own)


def evaluate_policy(
    context: RunContext,
    policy: str,
    questions: Sequence[Question],
    episode: EpisodeConfig,
    *,
    seed: int,
    label: str,
    guide: GuideConfig | None = None,
    reward: str | None = None,
    folder: Path | None = None,
) -> Evaluation:
    """Run one episode per question and score it. `reward`: the reward model, for a guide that uses one. `folder`: for
    the replies and the spend of a paid policy.
    """
    scoring, choose = (None, None) if guide is None else (guide.scoring(reward), guide.guide(reward))
    with open_driver(context, policy, folder=folder, scoring=scoring) as driver:
        with Progress(label, len(questions)) as watch:
            agent = context.agent_of(policy)
            result = evaluate(driver, agent, questions, episode, guide=choose, seed=seed, watch=watch)
        result = replace(result, paid=paid_by(driver.engine))
    if result.stopped_by is not None:
        raise result.stopped_by
    try:
        check_played(result.scores)
    except StepladderError as error:
        raise StepladderError(f"{label}: {error}") from error
    return result


def sampled_episodes(
    context: RunContext, task: Task, questions: Sequence[Question], *, num_generations: int, temperature: float
) -> list[Trajectory]:
    """Sampled episodes of the stage's policy; failed episodes are missing."""
    from stepladder.train.transcripts.sampled_episodes import policy_episodes  # imports torch

    policy = task.inputs[POLICY]
    return policy_episodes(
        replace(context.training(task, questions), agent=context.agent_of(policy)),
        lambda: open_driver(context, policy, folder=task.folder),
        questions,
        num_generations=num_generations,
        temperature=temperature,
        label=task.name,
        distributed=context.settings.ray is None and policy not in (ORACLE, SERVER),
    )
