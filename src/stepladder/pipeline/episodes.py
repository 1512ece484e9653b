"""Episodes of a policy, sampled by a stage so that their steps can be judged.

In: a policy and questions. Out: trajectories, stored in the stage's `episodes/`. After a kill, stored episodes are not
sampled again; of several processes, the main one samples.
"""

from collections.abc import Sequence

from stepladder.core.trace import Question, Trajectory
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import POLICY, Task


def sampled_episodes(
    context: RunContext, task: Task, questions: Sequence[Question], *, num_generations: int, temperature: float
) -> list[Trajectory]:
    """Sampled episodes of the stage's policy; failed episodes are missing."""
    from stepladder.train.transcripts.sampled_episodes import policy_episodes  # imports torch

    return policy_episodes(
        context.training(task, questions, dev=False),
        lambda: context.engine(task.inputs[POLICY]),
        questions,
        num_generations=num_generations,
        temperature=temperature,
        label=task.name,
    )
