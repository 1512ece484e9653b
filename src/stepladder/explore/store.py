"""Trees on disk, each added whole when it is done. A run that was killed goes on with what is there.

In: trees. Out: `trees.jsonl.gz`, a tree a line, in the order they were done; any tool that reads gzip reads it. Every
tree is a gzip member of its own, so that a tree that was cut off while it was written can be told and is taken off.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from stepladder.records import RecordError
from stepladder.trace import TraceError, Tree, dumps, loads

#: Trees say many things many times: little effort saves most of the room.
_EFFORT = 3
_READ = 1 << 20


class TreeFile:
    """The trees of an exploration. Opening takes off what a killed process left unfinished at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Questions whose trees are there.
        self.ids: set[str] = set()
        if not path.exists():
            return
        whole = 0
        for tree, whole_so_far in _members(path):
            self.ids.add(tree.question.id)
            whole = whole_so_far
        if path.stat().st_size > whole:
            with path.open("rb+") as file:
                file.truncate(whole)

    def add(self, tree: Tree) -> None:
        """Write a tree; it is on disk when this returns."""
        if tree.question.id in self.ids:
            raise ValueError(f"the tree of {tree.question.id!r} is there already")
        with self.path.open("ab") as file:
            file.write(gzip.compress((dumps(tree) + "\n").encode(), _EFFORT, mtime=0))
            file.flush()
            os.fsync(file.fileno())
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
                        f"{path}: damaged at byte {end:,}: {error}; delete it and explore again"
                    ) from error
                rest = unpacker.unused_data
                size += len(chunk) - len(rest)
            end += size
            try:
                yield loads(b"".join(pieces).decode(), Tree), end
            except (TraceError, UnicodeDecodeError) as error:
                raise RecordError(f"{path}: the tree that ends at byte {end:,} cannot be read: {error}") from error
