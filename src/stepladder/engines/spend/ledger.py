"""The ledger of a folder: every call on disk, so that a budget holds across restarts.

In: the file of a ledger. Every call is recorded before it is sent, with the maximum tokens it may cost, and again when
its cost is known. Out: totals by model. A call without a recorded end (killed process, broken connection, error of the
server) may have been billed: it counts with its maximum. After `sync`, not even a power failure forgets a call.

The file is locked: two processes at a time could each spend the budget.
"""

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.io.files import lock_file, sync, write_error
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
        #: The number of calls; and those without a recorded end, each with the excess that its reservation includes.
        self._calls = 0
        self._unsettled: dict[int, tuple[_Line, Usage]] = {}
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise StepladderError(f"{path} cannot be opened: {error.strerror or error}") from error
        try:
            lock_file(self._file, path)
            self._read()
            sync(path.parent)  # a new file is in its folder also after a power failure
        except BaseException:
            self._file.close()
            raise

    def reserve(self, model: str, max_usage: Usage) -> int:
        """Record a call before it is sent; returns its number. The known excess is added to its maximum."""
        with self._lock:
            call, most = self._calls, max_usage + self.excess.get(model, Usage())
            self._write(_Line(call, model, most.read, most.written, final=False))
            return call

    def settle(self, call: int, usage: Usage) -> None:
        """Record the actual cost of a call."""
        with self._lock:
            self._write(_Line(call, self._unsettled[call][0].model, usage.read, usage.written, final=True))

    def sync(self) -> None:
        """Wait until all calls recorded so far are on the disk."""
        try:
            os.fsync(self._file.fileno())
        except (OSError, ValueError) as error:
            raise self._failed(error) from error

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
        except (OSError, ValueError) as error:  # ValueError: the file was closed
            raise self._failed(error) from error
        self._apply(line)

    def _failed(self, error: Exception) -> BackendDown:
        if isinstance(error, ValueError):
            return BackendDown(f"{self.path} was closed while a call was in flight")
        after = "No call is sent that is not recorded: the same command resumes when there is room."
        return BackendDown(str(write_error(self.path, "ledger", error, after)))

    def _apply(self, line: _Line) -> None:
        """Update the totals by a line: a new call, or the end of an earlier one."""
        excess = self.excess.get(line.model, Usage())
        if line.call == self._calls:
            self._calls += 1
        else:
            before, included = self._unsettled.pop(line.call)
            if line.final:
                self.excess[line.model] = Usage(
                    max(excess.read, line.read - before.read + included.read),
                    max(excess.written, line.written - before.written + included.written),
                )
            self._count(before, -1)
        if not line.final:
            self._unsettled[line.call] = line, excess
        self._count(line, 1)

    def _count(self, line: _Line, sign: int) -> None:
        self.open += sign * (not line.final)
        self.paid += sign * (line.final and line.read + line.written > 0)
        self.totals[line.model] = self.totals.get(line.model, Usage()) + Usage(sign * line.read, sign * line.written)

    def _read(self) -> None:
        end = 0
        with self.path.open("rb") as file:
            for number, text in enumerate(file, start=1):
                if not text.endswith(b"\n"):  # the call was never sent, or its end is unknown
                    self._file.truncate(end)
                    return
                end += len(text)
                try:
                    self._apply(_LINE.validate_json(text))
                except (ValidationError, KeyError) as error:
                    raise StepladderError(
                        f"{self.path}:{number}: not a line of a ledger. Restore the file: it records what was spent"
                    ) from error
