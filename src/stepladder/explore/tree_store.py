"""Trees on disk. Each is appended atomically when it is finished, so a killed run can resume.

In: trees. Out: `trees.jsonl.gz`, one tree per line in the order they were finished; any gzip tool reads it. Every tree
is a gzip member of its own, so that an incomplete last tree can be detected and removed.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stepladder.core.io.files import WriteError, lock_file
from stepladder.core.io.records import RecordError, dumps, loads
from stepladder.core.trace import TraceError, Tree

#: Trees are repetitive: a low level saves most of the space.
_COMPRESSION_LEVEL = 3
_CHUNK = 1 << 20


class TreeFile:
    """The trees of an exploration, locked for this process while it is open.

    Opening creates the file if necessary, and removes an incomplete last tree that a killed process left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: The ids of the questions whose trees are in the file.
        self.ids: set[str] = set()
        self._end = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise WriteError(f"{path} cannot be opened to add trees: {error.strerror or error}") from error
        try:
            lock_file(self._file, path)
            for tree, self._end in _members(path):
                self.ids.add(tree.question.id)
            self._file.truncate(self._end)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "TreeFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, tree: Tree) -> None:
        """Append a tree. It is on disk when this returns; if it raises, the file is unchanged."""
        if tree.question.id in self.ids:
            raise ValueError(f"the tree of {tree.question.id!r} is already in the file")
        member = gzip.compress((dumps(tree) + "\n").encode(), _COMPRESSION_LEVEL, mtime=0)
        try:
            rest = memoryview(member)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except BaseException as error:
            with suppress(OSError):  # otherwise it is removed when the file is opened again
                self._file.truncate(self._end)
            if not isinstance(error, OSError):
                raise
            raise WriteError(
                f"{self.path}: a tree could not be written: {error.strerror or error}. The {len(self.ids):,} trees "
                "before it are kept: run the same command to resume"
            ) from error
        self._end += len(member)
        self.ids.add(tree.question.id)


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, one at a time."""
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    complete = 0
    for tree, end in _members(path):
        yield tree
        complete = end
    if path.stat().st_size > complete:
        raise RecordError(f"{path}: the last tree is incomplete; run the command that made the file again to resume")


def _members(path: Path) -> Iterator[tuple[Tree, int]]:
    """The complete trees of a file, each with its end offset. An incomplete last tree is ignored."""
    with path.open("rb") as file:
        end, rest = 0, b""
        while True:
            unpacker = zlib.decompressobj(wbits=31)
            pieces = []
            size = 0
            while not unpacker.eof:
                chunk = rest or file.read(_CHUNK)
                if not chunk:
                    return
                try:
                    pieces.append(unpacker.decompress(chunk))
                except zlib.error as error:
                    raise RecordError(
                        f"{path}: damaged at byte {end:,}: {error}. The trees before that byte are complete: truncate "
                        "the file there, or delete it, and explore again"
                    ) from error
                rest = unpacker.unused_data
                size += len(chunk) - len(rest)
            end += size
            try:
                yield loads(b"".join(pieces).decode(), Tree), end
            except (TraceError, UnicodeDecodeError) as error:
                raise RecordError(f"{path}: the tree that ends at byte {end:,} cannot be read: {error}") from error
