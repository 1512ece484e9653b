"""All runs, and what has changed in them.

In: the runs of a folder. Out: the state of each, read again when one of its files has changed. However many pages are
open, files are looked at once per `seconds`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from time import monotonic

from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.tree_search import FILE
from stepladder.reporting.report.training_curves import CURVES
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.run_library import RunLibrary
from stepladder.serve.studio.watch.run_memory import RunMemory
from stepladder.serve.studio.watch.run_state import RunState, State, read_state
from stepladder.train.grpo.monitors import ALARMS

_RUN_FILES = ("run.json", "recipe.yaml", "failure.json")
_STAGE_FILES = ("stage.json", "started.json", CURVES, ALARMS, FILE)

#: Seconds for runs that have not been read before: of a thousand runs, a page shows the first ones at once.
_FIRST_LOOK = 0.4

Signature = tuple[object, ...]


class WatchedRun:
    """One run, read again when it has changed."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._signature: Signature | None = None
        self._memory = RunMemory()
        self._state: RunState | None = None
        #: Increased when the state has changed.
        self.version = 0

    def state(self) -> RunState:
        """The state now."""
        signature = self.signature()
        if self._state is None or signature != self._signature:
            state = read_state(self.name, self.folder, self._memory)
            if state != self._state:
                self._state = state
                self.version += 1
            self._signature = signature
        return self._state

    def signature(self) -> Signature:
        """What changes when a file of the run does, or when a process begins or ends to work on it."""
        return (RunFolder(self.folder).in_use(), *_stats(self.folder, _RUN_FILES), *self._stages())

    def _stages(self) -> Iterator[object]:
        try:
            with os.scandir(self.folder) as entries:
                folders = sorted(each.path for each in entries if each.is_dir() and not each.name.startswith("."))
        except OSError:
            return
        for folder in folders:
            yield folder
            yield from _stats(Path(folder), _STAGE_FILES)


def _stats(folder: Path, names: tuple[str, ...]) -> Iterator[tuple[int, ...] | None]:
    for name in names:
        try:
            found = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118 - called thousands of times
        except OSError:
            yield None
        else:
            yield found.st_ino, found.st_size, found.st_mtime_ns


class RunWatch:
    """All runs of a library. Its methods may be called from any thread."""

    def __init__(self, runs: RunLibrary, seconds: float) -> None:
        """Files are looked at again after so many seconds."""
        self.runs = runs
        self._seconds = seconds
        self._lock = Lock()
        self._watched: dict[str, WatchedRun] = {}
        self._states: list[tuple[RunState, int]] = []
        self._looked = -seconds

    def states(self) -> list[tuple[RunState, int]]:
        """The states of all runs, each with a number that grows when it changes: running ones first, then newest.

        Some may be `UNREAD` at first.
        """
        with self._lock:
            if monotonic() - self._looked >= self._seconds:
                names = self.runs.names()
                self._watched = {name: self._watch(name) for name in names}
                until = monotonic() + _FIRST_LOOK
                self._states = [
                    (each.state(), each.version)
                    if each.version or monotonic() < until
                    else (RunState(each.name, State.UNREAD), 0)
                    for each in self._watched.values()
                ]
                self._looked = monotonic()
            found = self._states
        return sorted(found, key=lambda one: (one[0].state is not State.RUNNING, -one[0].started, one[0].name))

    def state(self, name: str) -> tuple[RunState, int]:
        """The state of a run, and a number that grows when it changes. Raises `HTTPError` for an unknown name."""
        with self._lock:
            self.runs.folder(name)
            watched = self._watched.setdefault(name, self._watch(name))
            return watched.state(), watched.version

    def readable(self, name: str) -> RunState:
        """The state of a run that can be read. Raises `HTTPError`, which says what is wrong with it."""
        state, _ = self.state(name)
        if not state.is_readable:
            raise HTTPError(409, state.problem)
        return state

    def _watch(self, name: str) -> WatchedRun:
        return self._watched.get(name) or WatchedRun(name, self.runs.root / name)
