"""Exploration: grow search trees for many questions at once and write each to disk when it is finished.

In: a driver, questions, a tree search, a file. Out: `trees.jsonl.gz`, one tree per line; any gzip tool reads it. Every
tree is a gzip member of its own, appended atomically, so that an incomplete last tree can be detected and removed.
Trees that are already in the file are kept, so a killed run resumes. A tree depends on its question and the seed alone,
and the finished file is put into the order of the questions: a resumed run and one on several machines make the same.
"""

import gzip
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import WriteError, atomic_file, lock_file
from stepladder.core.io.records import RecordError, dumps, loads
from stepladder.core.memory import format_bytes
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, TraceError, Tree
from stepladder.driver import Counts, Driver, OutcomeCallback

#: Trees are repetitive: a low level saves most of the space.
_COMPRESSION_LEVEL = 3
_CHUNK = 1 << 20
#: Maximum bytes of a tree as JSON. A few MB of gzip can unpack to what fills the memory.
_MAX_TREE = 1 << 30


class TreeFile:
    """The trees of an exploration, locked for this process while it is open.

    Opening creates the file if necessary, and removes an incomplete last tree that a killed process left.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: By the id of its question: where each tree is in the file.
        self.ids: dict[str, slice] = {}
        self._end = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise WriteError(f"{path} cannot be opened to add trees: {error.strerror or error}") from error
        try:
            lock_file(self._file, path)
            for tree, end in new_trees(path, 0):
                self.ids[tree.question.id] = slice(self._end, end)
                self._end = end
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
        self.ids[tree.question.id] = slice(self._end, self._end + len(member))
        self._end += len(member)

    def sort(self, ids: Iterable[str]) -> None:
        """Put the trees into this order; those of other questions come first. Nothing can be added afterwards."""
        last = dict.fromkeys(each for each in ids if each in self.ids)
        order = [*(each for each in self.ids if each not in last), *last]
        if order == list(self.ids):
            return
        with self.path.open("rb") as old, atomic_file(self.path, "wb", what="trees") as new:
            for place in (self.ids[each] for each in order):
                old.seek(place.start)
                new.write(old.read(place.stop - place.start))


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, one at a time."""
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    complete = 0
    for tree, end in new_trees(path, 0):
        yield tree
        complete = end
    if path.stat().st_size > complete:
        raise RecordError(f"{path}: the last tree is incomplete; run the command that made the file again to resume")


def read_tree(path: Path, place: slice) -> Tree:
    """The tree at this place in a file."""
    with path.open("rb") as file:
        for text, end in _raw_members(file, path, place.start):
            return _parse(text, path, end)
    raise RecordError(f"{path}: there is no tree at byte {place.start:,}")


def new_trees(path: Path, start: int) -> Iterator[tuple[Tree, int]]:
    """The complete trees from a byte of a file on, each with its end offset. An incomplete last tree is ignored."""
    with path.open("rb") as file:
        for text, end in _raw_members(file, path, start):
            yield _parse(text, path, end), end


def _parse(text: bytes, path: Path, end: int) -> Tree:
    try:
        return loads(text.decode(), Tree)
    except (TraceError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: the tree that ends at byte {end:,} cannot be read: {error}") from error


def _raw_members(file: BinaryIO, path: Path, start: int) -> Iterator[tuple[bytes, int]]:
    """The complete gzip members from a byte on: the JSON of each tree, and its end offset."""
    file.seek(start)
    end, rest = start, b""
    while True:
        unpacker = zlib.decompressobj(wbits=31)
        pieces = []
        size, room = 0, _MAX_TREE
        while not unpacker.eof:
            chunk = rest or file.read(_CHUNK)
            if not chunk:
                return
            try:
                pieces.append(unpacker.decompress(chunk, room + 1))
            except zlib.error as error:
                raise RecordError(
                    f"{path}: damaged at byte {end:,}: {error}. The trees before that byte are complete: truncate "
                    "the file there, or delete it, and explore again"
                ) from error
            room -= len(pieces[-1])
            if room < 0:
                raise RecordError(f"{path}: a tree of more than {format_bytes(_MAX_TREE)} at byte {end:,}")
            rest = unpacker.unused_data
            size += len(chunk) - len(rest)
        end += size
        yield b"".join(pieces), end


@dataclass(frozen=True, slots=True)
class ExploreResult:
    """How many trees were made, and why others failed."""

    #: Trees made by this run, and trees found in the file.
    made: int
    known: int
    #: Questions without a tree, by reason.
    failures: Counter[str]


#: The tree search: makes the algorithm for a question and a seed.
Grow = Callable[[Question, int], Algorithm[Tree]]


def explore(
    driver: Driver,
    questions: Sequence[Question],
    grow: Grow,
    path: Path,
    *,
    seed: int,
    watch: OutcomeCallback | None = None,
) -> ExploreResult:
    """Grow the trees that are not yet in the file."""
    repeated = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
    if repeated:
        raise StepladderError(
            f"question ids must be unique: {len(repeated):,} ids occur more than once, such as {repeated[0]!r}"
        )

    failures: Counter[str] = Counter()
    with TreeFile(path) as trees:
        missing = [question for question in questions if question.id not in trees.ids]
        for outcome in driver.stream(partial(grow, each, seed_of(seed, each.id)) for each in missing):
            try:
                if outcome.failure is not None:
                    failures[outcome.failure.reason] += 1
                elif outcome.value is not None:
                    trees.add(outcome.value)
            except TraceError as error:  # this tree cannot be written, the others can
                failures[str(error)] += 1
            if watch is not None:
                watch(outcome)
        trees.sort(question.id for question in questions)
    return ExploreResult(len(missing) - failures.total(), len(questions) - len(missing), failures)


def throughput_note(counts: Counts, cost: Callable[[], str] | None = None) -> Callable[[], str]:
    """The throughput and cache hit rate of a driver, as the note of a progress bar.

    `cost`: a further note, such as the cost of a judge.
    """
    started = time.monotonic()

    def note() -> str:
        tokens = counts.usage.written / max(time.monotonic() - started, 1e-9)
        spent = cost() if cost is not None else ""
        return f"{tokens:,.0f} tokens/s, {counts.shared:.0%} from cache{', ' if spent else ''}{spent}"

    return note
