"""What a folder has paid for, call by call, on disk: a budget holds over restarts.

In: the file of a ledger. Every call is written down before it is sent, with the most tokens it may cost, and again
when its cost is known. Out: totals by model. A call of which no end is on record, because its process was killed or
the connection broke, may have been billed: it counts with the most it may have cost.

One process at a time: two would each spend the budget.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.trace import Usage


@dataclass(frozen=True, slots=True)
class _Line:
    """A call as it stands in the file; the last line of a call holds."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    call: NonNegativeInt
    model: str
    read: NonNegativeInt
    written: NonNegativeInt
    #: False: sent, and at most these tokens. True: ended, and exactly these; none where it was refused.
    final: bool


_LINE = TypeAdapter(_Line)


class Ledger:
    """The calls that were made from a folder. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Tokens by model: those known, and the most that calls without an end may have cost.
        self.totals: dict[str, Usage] = {}
        #: Calls that were paid for, and those of which no end is known.
        self.paid, self.open = 0, 0
        self._calls: list[_Line] = []
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise StepladderError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            _claim(self._file, path)
            self._read()
        except BaseException:
            self._file.close()
            raise

    def hold(self, model: str, max_usage: Usage) -> int:
        """Write down a call before it is sent; returns its number."""
        with self._lock:
            call = len(self._calls)
            self._write(_Line(call, model, max_usage.read, max_usage.written, final=False))
            return call

    def settle(self, call: int, usage: Usage) -> None:
        """Write down what a call has cost in the end."""
        with self._lock:
            self._write(_Line(call, self._calls[call].model, usage.read, usage.written, final=True))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _write(self, line: _Line) -> None:
        try:
            self._file.write(_LINE.dump_json(line) + b"\n")
            self._file.flush()
        except (OSError, ValueError) as error:  # ValueError: the file was closed while a call was under way
            raise BackendDown(f"{self.path}: what is spent could not be written down: {error}") from error
        self._take(line)

    def _take(self, line: _Line) -> None:
        """Reckon with a line: a new call, or what became of an earlier one."""
        if line.call == len(self._calls):
            self._calls.append(line)
        else:
            self._reckon(self._calls[line.call], -1)
            self._calls[line.call] = line
        self._reckon(line, 1)

    def _reckon(self, line: _Line, sign: int) -> None:
        self.open += sign * (not line.final)
        self.paid += sign * (line.final and line.read + line.written > 0)
        self.totals[line.model] = self.totals.get(line.model, Usage()) + Usage(sign * line.read, sign * line.written)

    def _read(self) -> None:
        self._file.seek(0)
        whole, newline, cut_off = self._file.read().rpartition(b"\n")
        if cut_off:  # of a call that was never sent, or whose end is not known
            self._file.truncate(len(whole) + len(newline))
        for number, text in enumerate(whole.split(b"\n") if whole else (), start=1):
            try:
                self._take(_LINE.validate_json(text))
            except (ValidationError, IndexError) as error:
                raise StepladderError(
                    f"{self.path}:{number}: not a line of a ledger. Restore the file: it holds what was spent"
                ) from error


def _claim(file: BinaryIO, path: Path) -> None:
    import fcntl  # not on Windows, where the rest can still be used

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StepladderError(f"{path} is in use by another process: wait for it, or use another folder") from error
