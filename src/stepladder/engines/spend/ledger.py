"""The ledger of a folder: every call on disk, so that a budget holds across restarts.

In: the file of a ledger. Every call is recorded before it is sent, with the maximum tokens it may cost, and again when
its cost is known. Out: totals by model. A call without a recorded end (killed process, broken connection, error of the
server) may have been billed: it counts with its maximum.

The file is locked: two processes at a time could each spend the budget.
"""

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.io.files import lock_file
from stepladder.core.trace import Usage


@dataclass(frozen=True, slots=True)
class _Line:
    """One line of the file. The last line of a call is the valid one."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    call: NonNegativeInt
    model: str
    read: NonNegativeInt
    written: NonNegativeInt
    #: False: sent, at most these tokens. True: ended, exactly these tokens; zero if it was rejected.
    final: bool


_LINE = TypeAdapter(_Line)


class Ledger:
    """The calls made from a folder. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Tokens by model; calls without a recorded end count with their maximum.
        self.totals: dict[str, Usage] = {}
        #: The number of paid calls, and of calls without a recorded end.
        self.paid, self.open = 0, 0
        #: By model: tokens that its server counted beyond the maximum. They are added to later reservations.
        self.excess: dict[str, Usage] = {}
        self._calls: list[_Line] = []
        #: Of each call: the excess that its reservation includes.
        self._included: list[Usage] = []
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise StepladderError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            lock_file(self._file, path)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def reserve(self, model: str, max_usage: Usage) -> int:
        """Record a call before it is sent; returns its number. The known excess is added to its maximum."""
        with self._lock:
            call, most = len(self._calls), max_usage + self.excess.get(model, Usage())
            self._write(_Line(call, model, most.read, most.written, final=False))
            return call

    def settle(self, call: int, usage: Usage) -> None:
        """Record the actual cost of a call."""
        with self._lock:
            self._write(_Line(call, self._calls[call].model, usage.read, usage.written, final=True))

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def _write(self, line: _Line) -> None:
        data = _LINE.dump_json(line) + b"\n"
        try:
            end = self._file.seek(0, os.SEEK_END)
            try:
                if self._file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                self._file.truncate(end)  # no part of a line stays behind
                raise
        except (OSError, ValueError) as error:  # ValueError: the file was closed while a call was in flight
            raise BackendDown(f"{self.path}: the spend could not be recorded: {error}") from error
        self._apply(line)

    def _apply(self, line: _Line) -> None:
        """Update the totals by a line: a new call, or the end of an earlier one."""
        excess = self.excess.get(line.model, Usage())
        if line.call == len(self._calls):
            self._calls.append(line)
            self._included.append(excess)
        else:
            before, included = self._calls[line.call], self._included[line.call]
            if line.final:
                self.excess[line.model] = Usage(
                    max(excess.read, line.read - before.read + included.read),
                    max(excess.written, line.written - before.written + included.written),
                )
            self._count(before, -1)
            self._calls[line.call] = line
        self._count(line, 1)

    def _count(self, line: _Line, sign: int) -> None:
        self.open += sign * (not line.final)
        self.paid += sign * (line.final and line.read + line.written > 0)
        self.totals[line.model] = self.totals.get(line.model, Usage()) + Usage(sign * line.read, sign * line.written)

    def _read(self) -> None:
        self._file.seek(0)
        complete, newline, incomplete = self._file.read().rpartition(b"\n")
        if incomplete:  # the call was never sent, or its end is unknown
            self._file.truncate(len(complete) + len(newline))
        for number, text in enumerate(complete.split(b"\n") if complete else (), start=1):
            try:
                self._apply(_LINE.validate_json(text))
            except (ValidationError, IndexError) as error:
                raise StepladderError(
                    f"{self.path}:{number}: not a line of a ledger. Restore the file: it records what was spent"
                ) from error
