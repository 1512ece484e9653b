"""Episodes of a policy: evaluated, or sampled by a stage so that their steps can be judged.

In: a policy and questions. Out: an `Evaluation`, or trajectories, which are stored in the stage's `episodes/`. After a
kill, stored episodes are not sampled again; of several processes, the main one samples.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.evaluation.evaluator import Evaluation, check_played, evaluate
from stepladder.explore.episode import EpisodeConfig
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.resources import RunContext, paid_by
from stepladder.pipeline.stage import POLICY, Task


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
    scorer, choose = (None, None) if guide is None else (guide.scorer(context, reward), guide.guide())
    with context.engine(policy, folder=folder) as engine, Progress(label, len(questions)) as watch:
        driver = Driver(engine, context.retriever, scorer)
        agent = context.agent_of(policy)
        result = evaluate(driver, agent, questions, episode, guide=choose, seed=seed, watch=watch)
        result = replace(result, paid=paid_by(engine))
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
        replace(context.training(task, questions, dev=False), agent=context.agent_of(policy)),
        lambda: context.engine(policy, folder=task.folder),
        questions,
        num_generations=num_generations,
        temperature=temperature,
        label=task.name,
    )
