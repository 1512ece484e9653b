"""The ledger of a folder: every call on disk, so that a budget holds across restarts.

In: the file of a ledger. Every call is recorded before it is sent, with the maximum tokens it may cost, and again when
its cost is known. Out: totals by model. A call without a recorded end (killed process, broken connection) may have been
billed: it counts with its maximum.

The file is locked: two processes at a time could each spend the budget.
"""

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
        self._calls: list[_Line] = []
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise StepladderError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            lock_file(self._file, path)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def reserve(self, model: str, max_usage: Usage) -> int:
        """Record a call before it is sent; returns its number."""
        with self._lock:
            call = len(self._calls)
            self._write(_Line(call, model, max_usage.read, max_usage.written, final=False))
            return call

    def settle(self, call: int, usage: Usage) -> None:
        """Record the actual cost of a call."""
        with self._lock:
            self._write(_Line(call, self._calls[call].model, usage.read, usage.written, final=True))

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def _write(self, line: _Line) -> None:
        try:
            self._file.write(_LINE.dump_json(line) + b"\n")
            self._file.flush()
        except (OSError, ValueError) as error:  # ValueError: the file was closed while a call was in flight
            raise BackendDown(f"{self.path}: the spend could not be recorded: {error}") from error
        self._apply(line)

    def _apply(self, line: _Line) -> None:
        """Update the totals by a line: a new call, or the end of an earlier one."""
        if line.call == len(self._calls):
            self._calls.append(line)
        else:
            self._count(self._calls[line.call], -1)
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
