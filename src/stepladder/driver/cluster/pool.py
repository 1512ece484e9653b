"""A pool of workers: items are handed out in small portions, and results come back as they finish.

In: `Workers` (Ray's, in ray_cluster.py) and items. Out: one result per item, or `Lost`. A worker that dies is replaced
and its items are played again. Items that were with a dying worker twice are played one at a time, so that only the one
that kills its worker is lost. A pool of which worker after worker dies without a single result is down.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from stepladder.core.errors import BackendDown
from stepladder.core.io.interrupts import check_interrupt
from stepladder.driver.cluster.host import Reply

#: Seconds between two looks at the clock and at Ctrl-C.
_WAIT_SECONDS = 0.5
#: A pool is down when so many workers per slot died in a row.
_DEATHS_PER_SLOT = 3


class WorkerDied(Exception):
    """The process of a worker ended."""


class Call(Protocol):
    """A call of a worker that is under way."""

    def result(self) -> Any:
        """What it returned, once it is done. Raises `WorkerDied` if the worker died."""


class Worker(Protocol):
    """A worker process."""

    def open(self) -> Call:
        """Open what the work needs; returns why it failed, or None."""

    def exchange(self, items: Sequence[tuple[int, Any]]) -> Call:
        """Send items and wait for results, a `Reply`."""

    def kill(self) -> None:
        """End the process."""


class Workers(Protocol):
    """Where workers come from."""

    def start_all(self) -> list[Worker]:
        """Start all workers, open and checked."""

    def start(self) -> Worker:
        """Start one more, in place of one that died."""

    def wait(self, calls: Sequence[Call], timeout: float) -> list[Call]:
        """The calls that are done, after at most so many seconds."""


@dataclass(frozen=True, slots=True)
class Lost:
    """In place of a result: the item kills its worker."""

    reason: str


@dataclass(slots=True, eq=False)
class _Item:
    number: int
    value: Any
    #: Workers that died with it.
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Slot:
    worker: Worker
    call: Call | None = None
    opening: bool = False
    items: dict[int, _Item] = field(default_factory=dict)


class WorkerPool:
    """Workers that stay open for any number of `map` calls."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._slots = [_Slot(worker) for worker in workers.start_all()]
        self._most_deaths = _DEATHS_PER_SLOT * len(self._slots)
        self._numbers = count()
        self._deaths_in_a_row = 0
        #: The newest report of every worker, also of dead ones.
        self.reports: dict[Worker, Any] = {}
        #: Workers that died.
        self.deaths = 0

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def workers(self) -> list[Worker]:
        """The workers at the moment."""
        return [slot.worker for slot in self._slots]

    def close(self) -> None:
        """End all workers."""
        for slot in self._slots:
            slot.worker.kill()
        self._slots = []

    def map(self, values: Sequence[Any], window: int) -> Iterator[tuple[int, Any]]:
        """Results with the positions of their values, as they finish. At most `window` values are with a worker."""
        items = [_Item(next(self._numbers), value) for value in values]
        first = items[0].number if items else 0
        # Half of the values are handed out at first, the others where there is room: workers end together.
        window = max(1, min(window, -(-len(items) // (2 * max(len(self._slots), 1)))))
        todo, alone = deque(items), deque[_Item]()
        left = len(items)
        while left:
            check_interrupt()
            for slot in self._slots:
                self._send(slot, todo, alone, window)
            calls = [slot.call for slot in self._slots if slot.call is not None]
            done = self._workers.wait(calls, _WAIT_SECONDS)
            for slot in [each for each in self._slots if each.call in done]:
                for number, result in self._receive(slot, todo, alone):
                    left -= 1
                    yield number - first, result

    def _send(self, slot: _Slot, todo: deque[_Item], alone: deque[_Item], window: int) -> None:
        """Hand out items to a worker that waits for some."""
        if slot.call is not None:
            return
        items: list[_Item] = []
        if todo and not any(item.deaths > 1 for item in slot.items.values()):
            share = -(-len(todo) // len(self._slots))
            items = [todo.popleft() for _ in range(min(window - len(slot.items), share, len(todo)))]
        elif alone and not slot.items:
            items = [alone.popleft()]
        slot.items.update((item.number, item) for item in items)
        if slot.items:
            slot.call = slot.worker.exchange([(item.number, item.value) for item in items])

    def _receive(self, slot: _Slot, todo: deque[_Item], alone: deque[_Item]) -> Iterator[tuple[int, Any]]:
        """Take in the reply of a worker; replace it if it died."""
        assert slot.call is not None
        call, slot.call = slot.call, None
        try:
            found = call.result()
        except WorkerDied as error:
            yield from self._replace(slot, str(error), todo, alone)
            return
        if slot.opening:
            slot.opening = False
            if found is not None:
                self._retire(slot, found)
            return
        reply: Reply = found
        self.reports[slot.worker] = reply.report
        for number, result in reply.results:
            if slot.items.pop(number, None) is not None:  # else of a `map` that was given up
                self._deaths_in_a_row = 0
                yield number, result
        if reply.error is not None:
            raise BackendDown(reply.error)

    def _replace(self, slot: _Slot, reason: str, todo: deque[_Item], alone: deque[_Item]) -> Iterator[tuple[int, Any]]:
        """A new worker in place of a dead one, whose items are played again."""
        self.deaths += 1
        self._deaths_in_a_row += 1
        items, slot.items = list(slot.items.values()), {}
        for item in reversed(items):
            item.deaths += 1
            if item.deaths == 1:
                todo.appendleft(item)
            elif len(items) > 1:
                alone.append(item)
            else:
                yield (
                    item.number,
                    Lost(f"its worker died {item.deaths} times, the last time with nothing else: {reason}"),
                )
        if self._deaths_in_a_row > self._most_deaths:
            raise BackendDown(f"{self._deaths_in_a_row} workers in a row died before they had a result: {reason}")
        if slot.opening:  # it cannot even start
            self._retire(slot, reason)
            return
        slot.worker = self._workers.start()
        slot.call, slot.opening = slot.worker.open(), True

    def _retire(self, slot: _Slot, reason: str) -> None:
        """Go on without a worker that could not be replaced."""
        slot.worker.kill()
        self._slots = [each for each in self._slots if each is not slot]
        if not self._slots:
            raise BackendDown(f"no worker is left: {reason}")
