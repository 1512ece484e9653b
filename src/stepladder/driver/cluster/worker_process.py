"""The process of a worker: it opens what the work needs once, then works on the items it is sent.

In: the name of a function that opens a `Work`, and items. Out: results, as they finish. A thread of its own does the
work, so that it continues while results travel to the lead process and new items come back.
"""

import os
import platform
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from stepladder.core.errors import StepladderError
from stepladder.core.io.masking import mask, mask_process
from stepladder.core.version import __version__

#: Seconds that a finished result waits for others, to travel with them.
_GATHER_SECONDS = 0.25


class Work(Protocol):
    """What a worker does."""

    def work(self, items: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[int, Any]]:
        """Results of numbered items, in any order. None in place of an item: there is none at the moment."""

    def report(self) -> Any:
        """What it has consumed so far."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the lead process checks about a worker before work starts."""

    node: str
    process: int
    stepladder: str
    python: str
    #: Those of the paths in question that do not exist here.
    missing: tuple[str, ...]

    def check(self, node: str) -> None:
        """Raise if this node has another version than this process, or lacks a file."""
        own = facts()
        for name, its, ours in (
            ("Stepladder", self.stepladder, own.stepladder),
            ("Python", self.python, own.python),
        ):
            if its != ours:
                raise StepladderError(
                    f"the Ray node {node} has {name} {its}, and this process {ours}: install the same version on every "
                    "node"
                )
        if self.missing:
            raise StepladderError(
                f"the Ray node {node} has no {', '.join(self.missing)}, which this machine has: every node needs "
                "models, questions and indexes at the same paths, such as on a shared file system"
            )


@dataclass(frozen=True, slots=True)
class Reply:
    """Results by the numbers of their items, and what the worker has consumed so far.

    `error`: why it cannot work any more.
    """

    results: tuple[tuple[int, Any], ...]
    report: Any = None
    error: str | None = None


def facts(paths: Sequence[str] = ()) -> Facts:
    """Facts about this process and its machine."""
    missing = tuple(path for path in paths if not Path(path).exists())
    python = ".".join(platform.python_version_tuple()[:2])
    return Facts(socket.gethostname(), os.getpid(), __version__, python, missing)


class WorkerProcess:
    """What the lead process calls in a worker."""

    def __init__(self, *, own_process: bool = False, gpus: bool = False) -> None:
        """`own_process`: it is alone in its process, whose logs must not contain keys, and which may use `gpus`."""
        if own_process:
            mask_process()
            if not gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._todo: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        self._done: SimpleQueue[tuple[int, Any] | str] = SimpleQueue()
        self._work: Work | None = None
        #: Items that were sent and have not been returned; those that the thread has taken and not finished.
        self._open = self._taken = 0
        self._error: str | None = None

    def facts(self, paths: Sequence[str] = ()) -> Facts:
        """Facts about this process."""
        return facts(paths)

    def open(self, target: str, plan: Any) -> str | None:
        """Open the work: `target` is module:function, called with the plan. Returns why it failed."""
        module, _, function = target.partition(":")
        try:
            self._work = getattr(import_module(module), function)(plan)
        except Exception as error:  # noqa: BLE001 - told to the lead process, which raises it
            return _text(error)
        threading.Thread(target=self._run, name="work", daemon=True).start()
        return None

    def exchange(self, items: Sequence[tuple[int, Any]]) -> Reply:
        """Take new items and wait for results: half of those that are due, or fewer after a while.

        There must be something to wait for.
        """
        self._open += len(items)
        enough = -(-self._open // 2)
        for item in items:
            self._todo.put(item)
        results: list[tuple[int, Any]] = []
        until = time.monotonic() + _GATHER_SECONDS
        while self._error is None and len(results) < enough:
            try:
                found = self._done.get(timeout=max(until - time.monotonic(), 0) if results else None)
            except Empty:
                break
            if isinstance(found, str):
                self._error = found
            else:
                if not results:
                    until = time.monotonic() + _GATHER_SECONDS
                results.append(found)
                self._open -= 1
        return Reply(tuple(results), self._work and self._work.report(), self._error)

    def _run(self) -> None:
        assert self._work is not None
        try:
            for result in self._work.work(self._items()):
                self._taken -= 1
                self._done.put(result)
        except Exception as error:  # noqa: BLE001 - told to the lead process, which raises it
            self._done.put(_text(error))

    def _items(self) -> Iterator[tuple[int, Any] | None]:
        while True:
            try:
                item = self._todo.get(block=self._taken == 0)
            except Empty:
                yield None
                continue
            self._taken += 1
            yield item


def _text(error: Exception) -> str:
    return mask(str(error) if isinstance(error, StepladderError) else f"{type(error).__name__}: {error}")
