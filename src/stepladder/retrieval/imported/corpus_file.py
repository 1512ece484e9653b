"""A corpus in a JSON Lines file of others, by position: rows are found by byte offset, nothing is loaded.

In: a `.jsonl` file, in the format of `corpus/tables.py`. Out: `find_rows`, the offset of every row; `CorpusFile`, the
passages by position; `check_rows`, which reads all of them once. Nothing is skipped or reordered: row n belongs to
vector n of the index.
"""

import mmap
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepladder.core.io.jsonl import Line, parse_object
from stepladder.core.trace import Passage
from stepladder.retrieval.base import ProgressCallback
from stepladder.retrieval.corpus.tables import CorpusError, read_passage

Offsets = npt.NDArray[np.uint64]

_CHUNK = 1 << 24
_PROGRESS_EVERY = 10_000
#: A line of at most this many bytes, with its end, holds no object.
_BLANK = 2


def find_rows(path: Path, progress: ProgressCallback) -> Offsets:
    """The byte offset of every row that is not blank, and the size of the file."""
    if path.suffix != ".jsonl":
        hint = f": decompress it first (gunzip -k {path.name})" if path.name.endswith(".jsonl.gz") else ""
        raise CorpusError(f"{path}: the corpus of an imported index must be a .jsonl file{hint}")
    ends: list[npt.NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]
    try:
        size, read = path.stat().st_size, 0
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                ends.append(np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + (read + 1))
                read += len(chunk)
                progress("Finding rows (MB)", read // 10**6, size // 10**6)
    except OSError as error:
        raise CorpusError(f"{path}: cannot be read: {error.strerror or error}") from error
    edges = np.concatenate(ends)
    if edges[-1] < read:  # the last line has no line break
        edges = np.append(edges, read)
    starts = edges[:-1][np.diff(edges) > _BLANK]
    if not len(starts):
        raise CorpusError(f"{path}: there are no passages")
    return np.append(starts, read).astype(np.uint64)


class CorpusFile:
    """The passages of a file, by position. Thread-safe."""

    def __init__(self, path: Path, offsets: Offsets) -> None:
        self.path, self._offsets = path, offsets
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> Passage:
        return read_passage(self._row(position))

    def __iter__(self) -> Iterator[Passage]:
        return (self[position] for position in range(len(self)))

    def texts(self, position: int) -> tuple[str, ...]:
        """The texts that an index of this row may have embedded: as it is stored first."""
        row, passage = self._row(position), self[position]
        stored = row.data.get("contents") or f'"{passage.title}"\n{passage.text}'
        together = f"{passage.title}\n{passage.text}" if passage.title else passage.text
        return stored, together, f"{passage.title} {passage.text}".strip(), passage.text

    def _row(self, position: int) -> Line:
        if not 0 <= position < len(self):
            raise IndexError(f"row {position} is out of range: there are rows 0 to {len(self) - 1}")
        raw = self._bytes[int(self._offsets[position]) : int(self._offsets[position + 1])]
        try:
            text = raw.decode("utf-8-sig" if position == 0 else "utf-8")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{self.path}:{position + 1}: not UTF-8: {error.reason}") from error
        return parse_object(self.path, position + 1, text.strip(), CorpusError)

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()


def check_rows(corpus: CorpusFile, progress: ProgressCallback) -> Iterator[Passage]:
    """All passages, in order; raises at the end if two rows have the same id."""
    hashes = array("q")
    for position, passage in enumerate(corpus):
        if position % _PROGRESS_EVERY == 0:
            progress("Reading passages", position, len(corpus))
        hashes.append(hash(passage.id))
        yield passage
    progress("Reading passages", len(corpus), len(corpus))
    found = np.frombuffer(hashes, dtype=np.int64)
    order = np.argsort(found, kind="stable")
    for place in np.flatnonzero(np.diff(found[order]) == 0).tolist():
        first, second = int(order[place]), int(order[place + 1])
        if corpus[first].id == corpus[second].id:
            raise CorpusError(
                f"{corpus.path}: rows {first + 1} and {second + 1} have the same id {corpus[first].id!r}; give every "
                "row an id of its own, and keep the order"
            )
