"""The new lines of a file that grows while it is read.

In: a path. Out: the complete lines that were added since the last look. The metrics log is rewritten by its writer,
with the old lines first: what counts is that the bytes before the last position are the same. If they are not, because
a resumed run dropped rows, or another file has this name, reading starts again.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: Bytes before the last position that must be the same.
_TAIL = 512
_CHUNK = 1 << 20
#: Bytes of a line: a longer one is no row of a log.
_MAX_LINE = 1 << 24


class AppendedFile:
    """The lines of a file, each read once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._signature: tuple[int, ...] | None = None
        self._position, self._tail = 0, b""

    def changed(self) -> bool:
        """Whether the file has changed since the last look, or has never been looked at."""
        return self._stat() != self._signature

    def read(self) -> tuple[bool, Iterator[bytes]]:
        """Whether reading starts again, so that the lines of earlier looks no longer count; and the new lines.

        The lines must be read to their end. A last line without its end is left for the next look.
        """
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            self._signature = None
            return self._restart(), iter(())
        self._signature = _signature(os.fstat(file.fileno()))
        file.seek(self._position - len(self._tail))
        restarted = file.read(len(self._tail)) != self._tail and self._restart()
        file.seek(self._position)
        return restarted, self._lines(file)

    def _restart(self) -> bool:
        """Begin at the start of the file again. Returns whether anything of it had been read."""
        had_lines, self._position, self._tail = self._position > 0, 0, b""
        return had_lines

    def _stat(self) -> tuple[int, ...] | None:
        try:
            return _signature(self.path.stat())
        except OSError:
            return None

    def _lines(self, file: BinaryIO) -> Iterator[bytes]:
        with file:
            rest = b""
            while chunk := file.read(_CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._position += len(line) + 1
                    yield line
                if lines:
                    self._tail = (self._tail + b"".join(line + b"\n" for line in lines[-8:]))[-_TAIL:]
                if len(rest) > _MAX_LINE:
                    raise ValueError(f"a line of more than {_MAX_LINE:,} bytes at byte {self._position:,}")


def _signature(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns
