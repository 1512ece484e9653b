"""Trees on disk, each added whole when it is done. A run that was killed goes on with what is there.

In: trees. Out: `trees.jsonl.gz`, a tree a line, in the order they were done; any tool that reads gzip reads it. Every
tree is a gzip member of its own, so that a tree that was cut off while it was written can be told and is taken off.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import WriteError
from stepladder.core.io.records import RecordError, dumps, loads
from stepladder.core.trace import TraceError, Tree

#: Trees say many things many times: little effort saves most of the room.
_EFFORT = 3
_READ = 1 << 20


class TreeFile:
    """The trees of an exploration, for this process alone while it is open.

    Opening makes the file where there is none, and takes off what a killed process left unfinished at the end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Questions whose trees are there.
        self.ids: set[str] = set()
        self._end = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise WriteError(f"{path} cannot be opened to add trees: {error.strerror or error}") from error
        try:
            self._lock()
            for tree, self._end in _members(path):
                self.ids.add(tree.question.id)
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise

    def _lock(self) -> None:
        import fcntl  # not on Windows, where the rest can still be used

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StepladderError(
                f"{self.path}: another process adds trees to it; wait until it is done, or choose another file"
            ) from error

    def __enter__(self) -> "TreeFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, raised_at: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, tree: Tree) -> None:
        """Write a tree. It is on disk when this returns; when it raises, nothing of it is."""
        if tree.question.id in self.ids:
            raise ValueError(f"the tree of {tree.question.id!r} is there already")
        member = gzip.compress((dumps(tree) + "\n").encode(), _EFFORT, mtime=0)
        try:
            rest = memoryview(member)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except BaseException as error:
            with suppress(OSError):  # what cannot be taken off now is taken off when the file is next opened
                self._file.truncate(self._end)
            if not isinstance(error, OSError):
                raise
            raise WriteError(
                f"{self.path}: a tree could not be written: {error.strerror or error}. The {len(self.ids):,} trees "
                "before it are kept, and the same command goes on from them"
            ) from error
        self._end += len(member)
        self.ids.add(tree.question.id)


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, one at a time."""
    if not path.is_file():
        raise RecordError(f"{path}: there is no such file")
    whole = 0
    for tree, whole_so_far in _members(path):
        yield tree
        whole = whole_so_far
    if path.stat().st_size > whole:
        raise RecordError(f"{path}: the file ends in the middle of a tree; the command that made it goes on from there")


def _members(path: Path) -> Iterator[tuple[Tree, int]]:
    """The whole trees of a file, each with the place where it ends. What is cut off at the end is left out."""
    with path.open("rb") as file:
        end, rest = 0, b""
        while True:
            unpacker = zlib.decompressobj(wbits=31)
            pieces = []
            size = 0
            while not unpacker.eof:
                chunk = rest or file.read(_READ)
                if not chunk:
                    return
                try:
                    pieces.append(unpacker.decompress(chunk))
                except zlib.error as error:
                    raise RecordError(
                        f"{path}: damaged at byte {end:,}: {error}. What stands before that byte is whole: cut the "
                        "file there, or delete it, and explore again"
                    ) from error
                rest = unpacker.unused_data
                size += len(chunk) - len(rest)
            end += size
            try:
                yield loads(b"".join(pieces).decode(), Tree), end
            except (TraceError, UnicodeDecodeError) as error:
                raise RecordError(f"{path}: the tree that ends at byte {end:,} cannot be read: {error}") from error
