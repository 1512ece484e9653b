"""Episodes that a policy plays so that their steps can be judged.

In: a policy and questions. Out: trajectories, kept in the stage's `episodes/`. When the process is killed, what is
there is not played again; of several processes the first one plays.
"""

from collections.abc import Sequence

from stepladder.driver import Driver
from stepladder.progress import Progress
from stepladder.stages.base import Task
from stepladder.trace import Question, Trajectory
from stepladder.workshop import Workshop

EPISODES = "episodes"


def sampled_episodes(
    workshop: Workshop, task: Task, questions: Sequence[Question], *, samples: int, temperature: float
) -> list[Trajectory]:
    """What the stage's policy does with questions that it may err on."""
    from accelerate import PartialState  # type: ignore[import-untyped] # brings torch

    from stepladder.engines.loading import pick_device
    from stepladder.train.sampling import sampled_in

    processes = PartialState(cpu=pick_device(workshop.settings.device).type == "cpu")
    with (
        processes.main_process_first(),
        workshop.engine(task.inputs["policy"]) as engine,
        Progress(task.name, len(questions) * samples) as watch,
    ):
        found, _ = sampled_in(
            task.folder / EPISODES,
            Driver(engine, workshop.retriever),
            workshop.agent,
            questions,
            workshop.episode(temperature),
            samples=samples,
            seed=task.seed,
            watch=watch,
        )
    return found
