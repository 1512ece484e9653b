"""A run in several processes, started by torchrun or `accelerate launch`.

In: a run in the main process. Out: the other processes take part in the stages that train. The main process owns the
run folder: it locks it, decides what is to be done, runs the stages that do not train, and writes the records. Before
a stage that trains it sends the others the stage; at the end, or after an error of its own, it sends them `End`.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from rich.console import Console

from stepladder.core import launch
from stepladder.core.io.known_servers import name_servers
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage import StageResult, Task
from stepladder.pipeline.stages import get_stage


@dataclass(frozen=True, slots=True)
class _Train:
    """Train this stage."""

    recipe: Recipe
    task: Task


@dataclass(frozen=True, slots=True)
class _End:
    """The run is over; `failure` is the error of the main process."""

    failure: str | None = None


class Team:
    """The processes of a run; without a launcher it is one, and nothing is sent."""

    def __init__(self, device: str) -> None:
        """`device`: of the recipe."""
        self.is_together = False  # in a stage that trains
        if launch.world_size() > 1:
            from stepladder.models.loading import pick_device  # imports torch
            from stepladder.train.loop.processes import Processes

            self.processes = Processes(pick_device(device))

    @contextmanager
    def led(self) -> Iterator[None]:
        """Within, the main process runs the recipe."""
        if launch.world_size() == 1:
            yield
            return
        try:
            yield
        except BaseException as error:
            if not self.is_together:  # otherwise they notice that this process ends
                self.processes.from_main(_End(str(error) or type(error).__name__))
            raise
        self.processes.from_main(_End())

    def run(self, recipe: Recipe, task: Task, context: RunContext) -> StageResult:
        """Run a stage in this process, and if it trains in the others as well."""
        stage = next(stage for stage in recipe.stages if stage.name == task.name)
        kind = get_stage(stage.kind)
        if launch.world_size() == 1 or not kind.trains:
            return kind.run(stage.settings, context, task)
        if launch.is_main():
            self.processes.from_main(_Train(recipe, task))
        from stepladder.train.loop.processes import lost_processes

        self.is_together = True
        with lost_processes():
            result = kind.run(stage.settings, context, task)
            self.processes.wait()
        self.is_together = False
        return result

    def follow(self) -> None:
        """In the other processes: train what the main process sends, until it ends. Raises if it failed."""
        while True:
            order = self.processes.from_main(None)
            if isinstance(order, _End):
                if order.failure is not None:
                    raise launch.MainProcessFailed(f"the main process failed: {order.failure}")
                return
            assert isinstance(order, _Train)
            name_servers(order.recipe.plain(), new=True)
            with closing(RunContext(order.recipe.shared, Console(quiet=True))) as context:
                self.run(order.recipe, order.task, context)


def check_launch(settings: object) -> None:
    """Raise if the processes of the launch cannot train a stage with these settings."""
    if launch.world_size() > 1 or launch.sharding() is not None:
        from stepladder.train.loop.config import TrainingConfig
        from stepladder.train.loop.sharding import check_launch as check  # imports torch

        assert isinstance(settings, TrainingConfig)
        check(settings)
