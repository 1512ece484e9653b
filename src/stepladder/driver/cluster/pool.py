"""A pool of workers: items are handed out in small portions, and results come back as they finish.

In: `Workers` (Ray's, in ray_cluster.py) and items. Out: one result per item, or `Lost`. A worker that dies is replaced,
and its items are run again, once, one at a time: if a worker dies with one of them, that item is lost, and no other.
A pool is down if worker after worker dies without a single result.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

from stepladder.core.errors import BackendDown
from stepladder.core.io.interrupts import check_interrupt
from stepladder.driver.cluster.worker_process import Reply

#: Seconds between two looks at the clock and at Ctrl-C.
_WAIT_SECONDS = 0.5
#: Seconds that the replacement of a worker may take, with the loading of its model.
_REPLACE_SECONDS = 1800.0
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
    """In place of a result: two workers died with the item."""

    reason: str


#: An item and its number, which no other item of the pool has.
_Item = tuple[int, Any]


@dataclass(slots=True, eq=False)
class _Slot:
    worker: Worker
    call: Call | None = None
    #: Of a replacement that is not open yet: when it must be.
    open_until: float | None = None
    items: dict[int, Any] = field(default_factory=dict)
    #: Whether it runs an item again, which it then does alone.
    again: bool = False


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
        items = [(next(self._numbers), value) for value in values]
        first = items[0][0] if items else 0
        for slot in self._slots:  # left by a `map` that was given up
            slot.items = {}
        # Half of the values are handed out at first, the others where there is room: workers end together.
        window = max(1, min(window, -(-len(items) // (2 * max(len(self._slots), 1)))))
        todo, again = deque(items), deque[_Item]()
        left = len(items)
        while left:
            check_interrupt()
            for slot in self._slots:
                self._send(slot, todo, again, window)
            calls = [slot.call for slot in self._slots if slot.call is not None]
            done = self._workers.wait(calls, _WAIT_SECONDS)
            for slot in list(self._slots):
                if slot.call in done:
                    for number, result in self._receive(slot, again):
                        left -= 1
                        yield number - first, result
                elif slot.open_until is not None and time.monotonic() > slot.open_until:
                    self._retire(slot, f"a worker could not be replaced within {_REPLACE_SECONDS:.0f} s")

    def _send(self, slot: _Slot, todo: deque[_Item], again: deque[_Item], window: int) -> None:
        """Hand out items to a worker that waits for some. Those that are run again go first, each alone."""
        if slot.call is not None:
            return
        items: list[_Item] = []
        if not slot.items:
            slot.again = bool(again)
        if slot.again:
            items = [again.popleft()] if not slot.items else []
        elif not again:
            share = -(-len(todo) // len(self._slots))
            items = [todo.popleft() for _ in range(min(window - len(slot.items), share, len(todo)))]
        slot.items.update(items)
        if slot.items:
            slot.call = slot.worker.exchange(items)

    def _receive(self, slot: _Slot, again: deque[_Item]) -> Iterator[tuple[int, Any]]:
        """Take in the reply of a worker; replace it if it died."""
        assert slot.call is not None
        call, slot.call = slot.call, None
        try:
            found = call.result()
        except WorkerDied as error:
            yield from self._replace(slot, str(error), again)
            return
        if slot.open_until is not None:
            slot.open_until = None
            if found is not None:
                self._retire(slot, found)
            return
        reply: Reply = found
        self.reports[slot.worker] = reply.report
        for number, result in reply.results:
            if number in slot.items:
                del slot.items[number]
                self._deaths_in_a_row = 0
                yield number, result
        if reply.error is not None:
            raise BackendDown(reply.error)

    def _replace(self, slot: _Slot, reason: str, again: deque[_Item]) -> Iterator[tuple[int, Any]]:
        """A new worker in place of a dead one, whose items are run again, or are lost if they already were."""
        self.deaths += 1
        self._deaths_in_a_row += 1
        items, slot.items = slot.items, {}
        if slot.again:
            yield from (
                (number, Lost(f"two workers died with it, the second with nothing else: {reason}")) for number in items
            )
        else:
            again.extend(items.items())
        if self._deaths_in_a_row > self._most_deaths:
            raise BackendDown(f"{self._deaths_in_a_row} workers in a row died before they had a result: {reason}")
        if slot.open_until is not None:  # it cannot even start
            self._retire(slot, reason)
            return
        slot.worker = self._workers.start()
        slot.call, slot.open_until = slot.worker.open(), time.monotonic() + _REPLACE_SECONDS

    def _retire(self, slot: _Slot, reason: str) -> None:
        """Go on without a worker that could not be replaced."""
        slot.worker.kill()
        self._slots = [each for each in self._slots if each is not slot]
        if not self._slots:
            raise BackendDown(f"no worker is left: {reason}")
