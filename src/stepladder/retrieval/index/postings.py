"""The postings of a corpus: for every term the passages it stands in, with BM25 scores, made in bounded memory.

In: the terms of each passage, as numbers from 0. Out: a sparse matrix by columns, one column a term, in the layout of
`bm25s`: where each term's postings begin, their passages (ascending) and their scores. In memory, or in the library's
files.

The corpus is cut into runs that fit into memory. A run is sorted by term and put aside. Then the postings of as many
terms as fit into memory at a time are gathered from all runs, scored and written out. The result does not depend on
where the cuts are.
"""

import shutil
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepladder.retrieval.base import ProgressCallback, no_progress

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]

#: The library's names of the files.
STARTS, PASSAGES, SCORES = "indptr.csc.index.npy", "indices.csc.index.npy", "data.csc.index.npy"
#: The folder of temporary files.
_RUNS = "runs"

#: What a term on its way takes, with all that is made of it meanwhile: measured, and rounded up.
_BYTES_A_TERM = 64
#: A run or a block has so many at least, however little memory there is.
_FEWEST = 1 << 16

#: A term that stands in more than this part of all passages is kept as a row; bytes that the rows may take.
_ROW_PAYS, _ROW_BYTES = 8, 128 * 2**20


@dataclass(frozen=True, slots=True)
class Formula:
    """Lucene's BM25: idf(t) tf / (tf + k1 (1 - b + b length / mean length))."""

    k1: float
    b: float

    def scores(self, counts: Int32s, lengths: Int32s, mean_length: float, idf: Float32s) -> Float32s:
        """The score of each posting, from its count, the length of its passage and the idf of its term."""
        # In double precision and in this order, as the library does it, so that the last bits agree as well.
        held_back = self.k1 * ((1 - self.b) + self.b * lengths / mean_length)
        return (idf * (counts / (held_back + counts))).astype(np.float32)


def _idf(frequencies: Int64s, passages: int) -> Float32s:
    """What a term counts that stands in so many of the passages."""
    weights: Float32s = np.log(1 + (passages - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
    return weights


class Postings:
    """The arrays, which may be mapped into memory, and sums over them."""

    def __init__(self, starts: Int64s, passages: Int32s, scores: Float32s, count: int) -> None:
        #: Where each term's postings begin, and at the end where the last one's end.
        self.starts = starts
        #: The passage of each posting, ascending for each term.
        self.passages = passages
        #: The score of each posting.
        self.scores = scores
        #: How many passages there are altogether.
        self.count = count
        # To add a number to every passage takes a fifth of the time that adding it here and there takes, so the terms
        # that stand in many passages are kept as rows of all of them.
        self._many = count // _ROW_PAYS
        self._row = lru_cache(maxsize=_ROW_BYTES // max(4 * count, 1))(self._spread)

    def sums(self, terms: Iterable[int]) -> Float32s:
        """For every passage the sum of its scores for the terms."""
        found: Float32s = np.zeros(self.count, dtype=np.float32)
        for term in terms:
            its = slice(self.starts[term], self.starts[term + 1])
            if its.stop - its.start > self._many:
                found += self._row(term)
            else:
                np.add.at(found, self.passages[its], self.scores[its])
        return found

    def _spread(self, term: int) -> Float32s:
        its = slice(self.starts[term], self.starts[term + 1])
        row: Float32s = np.zeros(self.count, dtype=np.float32)
        row[self.passages[its]] = self.scores[its]
        return row


class PostingsWriter:
    """Counts the terms of passages; then `in_memory` or `write` gives their postings, once.

    Use it in a `with`: at its end the temporary files are removed, whatever happened. Without a `folder` for them
    everything stays in memory. `memory` bounds what the postings take; beside them lie 4 bytes a passage and about 20 a
    term.
    """

    def __init__(self, formula: Formula, folder: Path | None = None, memory: int = 0) -> None:
        self._formula = formula
        self._terms_at_once = max(memory // _BYTES_A_TERM, _FEWEST)
        self._folder = folder and folder / _RUNS
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)  # of an attempt that was killed
            self._folder.mkdir()
        self._terms, self._lengths = array("i"), array("i")
        self._cut_before = 0
        #: Rows: term, passage, count; sorted by term, then passage.
        self._runs: list[Int32s | Path] = []
        self._frequencies: Int64s = np.zeros(0, dtype=np.int64)

    def __enter__(self) -> "PostingsWriter":
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder:
            shutil.rmtree(self._folder)

    def add(self, terms: list[int]) -> None:
        """Count the terms of the next passage."""
        self._terms.fromlist(terms)
        self._lengths.append(len(terms))
        if self._folder and len(self._terms) >= self._terms_at_once:
            self._end_run()

    def in_memory(self) -> Postings:
        """The postings of all passages."""
        starts = self._count()
        passages, scores = zip(*self._blocks(starts))
        return Postings(starts, np.concatenate(passages), np.concatenate(scores), len(self._lengths))

    def write(self, folder: Path, progress: ProgressCallback = no_progress) -> None:
        """The postings of all passages, as files in a folder."""
        starts = self._count()
        np.save(folder / STARTS, starts)
        with (folder / PASSAGES).open("wb") as passages_file, (folder / SCORES).open("wb") as scores_file:
            for file, dtype in ((passages_file, np.int32), (scores_file, np.float32)):
                header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (int(starts[-1]),)}
                np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
            written = 0
            for passages, scores in self._blocks(starts):
                progress("Writing postings", written, int(starts[-1]))
                passages.tofile(passages_file)
                scores.tofile(scores_file)
                written += len(passages)
            progress("Writing postings", written, int(starts[-1]))

    def _end_run(self) -> None:
        """Sort the passages since the last cut by term, and put them aside."""
        lengths = np.asarray(self._lengths)[self._cut_before :]
        keys = np.asarray(self._terms).astype(np.int64) << 32
        self._terms = array("i")
        keys |= np.repeat(np.arange(self._cut_before, self._cut_before + len(lengths)), lengths)
        keys.sort()
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        run = np.empty((3, len(firsts)), dtype=np.int32)
        run[2] = np.diff(firsts, append=len(keys))
        keys = keys[firsts]
        run[0], run[1] = keys >> 32, keys & 0xFFFFFFFF
        self._cut_before = len(self._lengths)

        found = np.bincount(run[0], minlength=len(self._frequencies))
        found[: len(self._frequencies)] += self._frequencies
        self._frequencies = found
        if self._folder:
            file = self._folder / f"run-{len(self._runs)}.npy"
            np.save(file, run)
            self._runs.append(file)
        else:
            self._runs.append(run)

    def _count(self) -> Int64s:
        """End the last run; where each term's postings begin in the whole."""
        self._end_run()
        # 64 bits: large corpora have more postings than 32 bits can count.
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self._frequencies)])

    def _blocks(self, starts: Int64s) -> Iterator[tuple[Int32s, Float32s]]:
        """The passages and scores of all postings, as many terms at a time as memory allows."""
        lengths = np.asarray(self._lengths)
        mean_length = float(lengths.mean(dtype=np.float64))
        weights = _idf(self._frequencies, len(lengths))
        for first, end in self._ranges(starts):
            passages: Int32s = np.empty(starts[end] - starts[first], dtype=np.int32)
            scores: Float32s = np.empty(len(passages), dtype=np.float32)
            heads = starts[first:end] - starts[first]  # where the next posting of each term goes
            for terms, found, counts in self._pieces(first, end):
                # A piece is sorted by term: a posting goes as far behind its term's head as it is, in the piece, behind
                # the first of its term.
                nth = terms - terms[0]
                sizes = np.bincount(nth)
                ahead = heads[terms[0] - first :][: len(sizes)]
                places = np.arange(len(nth)) + (ahead - (np.cumsum(sizes) - sizes))[nth]
                passages[places] = found
                scores[places] = self._formula.scores(counts, lengths[found], mean_length, weights[terms])
                ahead += sizes
            yield passages, scores

    def _ranges(self, starts: Int64s) -> Iterator[tuple[int, int]]:
        """Ranges of terms whose postings fit into memory; a single term may be more."""
        first = 0
        while first < len(starts) - 1:
            room = np.searchsorted(starts, starts[first] + self._terms_at_once, side="right") - 1
            end = max(first + 1, int(room)) if self._folder else len(starts) - 1
            yield first, end
            first = end

    def _pieces(self, first: int, end: int) -> Iterator[tuple[Int32s, Int32s, Int32s]]:
        """The postings of a range of terms from one run after the other, so many at a time."""
        for run in self._runs:
            # Mapped anew for each range, so that what was read of it does not stay in memory.
            rows = np.load(run, mmap_mode="r") if isinstance(run, Path) else run
            begin, stop = (int(place) for place in np.searchsorted(rows[0], (first, end)))
            for start in range(begin, stop, _FEWEST):
                terms, passages, counts = np.asarray(rows[:, start : min(start + _FEWEST, stop)])
                yield terms, passages, counts
