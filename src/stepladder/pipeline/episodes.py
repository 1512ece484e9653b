"""Episodes of a policy, sampled by a stage so that their steps can be judged.

In: a policy and questions. Out: trajectories, stored in the stage's `episodes/`. After a kill, stored episodes are not
sampled again; of several processes, the main one samples.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import Task

EPISODES = "episodes"


def sampled_episodes(
    context: RunContext, task: Task, questions: Sequence[Question], *, samples: int, temperature: float
) -> list[Trajectory]:
    """Sampled episodes of the stage's policy; failed episodes are missing."""
    from accelerate import PartialState  # type: ignore[import-untyped] # brings torch

    from stepladder.models.loading import pick_device
    from stepladder.train.transcripts.sampled_episodes import episodes_exist, sample_episodes

    folder = task.folder / EPISODES
    processes = PartialState(cpu=pick_device(context.settings.device).type == "cpu")
    with ExitStack() as stack:
        stack.enter_context(processes.main_process_first())
        played = episodes_exist(folder, len(questions))
        engine = None if played else stack.enter_context(context.engine(task.inputs["policy"]))
        watch = None if played else stack.enter_context(Progress(task.name, len(questions) * samples))
        found, _ = sample_episodes(
            folder,
            Driver(engine, context.retriever),
            context.agent,
            questions,
            context.episode(temperature),
            samples=samples,
            seed=task.seed,
            watch=watch,
        )
    return found
