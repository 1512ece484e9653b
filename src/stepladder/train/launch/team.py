"""The processes of a run: the main process leads, the others take part in what trains.

In: a run in the main process. Out: before a stage that trains, the main process sends the others an order for it; at
the end, or after an error of its own, it sends them `_End`. The main process owns the run folder: it locks it, decides
what is to be done, runs the stages that do not train, and writes the records.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from stepladder.core.io import launch

Order = TypeVar("Order")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _End:
    """The run is over; `failure` is the error of the main process."""

    failure: str | None = None


class Team:
    """Without a launcher it is one process, and nothing is sent."""

    def __init__(self, device: str) -> None:
        """`device`: of the recipe."""
        self.is_together = False  # in a stage that trains
        if launch.world_size() > 1:
            from stepladder.models.devices import pick_device  # imports torch
            from stepladder.train.launch.processes import Processes

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
                with suppress(launch.LostProcess):  # this error is the one to report
                    self.processes.from_main(_End(str(error) or type(error).__name__))
            raise
        self.processes.from_main(_End())

    def together(self, order: object, work: Callable[[], Result]) -> Result:
        """Do some work in all processes: the others receive the order."""
        if launch.world_size() == 1:
            return work()
        from stepladder.train.launch.processes import lost_processes

        if launch.is_main():
            self.processes.from_main(order)
        self.is_together = True
        with lost_processes():
            result = work()
            self.processes.wait()
        self.is_together = False
        return result

    def follow(self, work: Callable[[Order], object]) -> None:
        """In the other processes: work on what the main process sends, until it ends. Raises if it failed."""
        while not isinstance(order := self.processes.from_main(None), _End):
            received: Order = order  # type: ignore[assignment]
            self.together(received, lambda order=received: work(order))  # type: ignore[misc]
        if order.failure is not None:
            raise launch.MainProcessFailed(f"the main process failed: {order.failure}")
