"""BM25 postings, built in bounded memory: for each term its passages and scores.

In: the term ids of each passage. Out: a sparse CSC matrix with one column per term, in the format of `bm25s`: the start
of each term's postings, their passages (ascending) and their scores. In memory, or in the library's files. The library
itself would need memory for the whole corpus.

An external sort: the corpus is split into runs that fit into memory, each sorted by term and stored. Then the runs are
merged for as many terms as fit into memory at a time, scored and written. The result does not depend on the run size.
"""

import shutil
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepladder.retrieval.base import ProgressCallback, no_progress

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]

#: The library's file names.
STARTS, PASSAGES, SCORES = "indptr.csc.index.npy", "indices.csc.index.npy", "data.csc.index.npy"
#: The folder of temporary files.
_RUNS = "runs"

#: Peak memory per term occurrence, measured and rounded up.
_BYTES_PER_TERM = 64
#: Minimum size of a run or a block.
_MIN_BLOCK = 1 << 16


class PostingsWriter:
    """Counts the terms of passages; then `in_memory` or `write` returns their postings, once.

    Lucene's BM25: idf(t) tf / (tf + k1 (1 - b + b length / mean length)). A context manager that removes its temporary
    files on exit. Without a `folder` for them, everything stays in memory. `memory` limits the postings, plus 4 bytes
    per passage and about 20 per term.
    """

    def __init__(self, k1: float, b: float, folder: Path | None = None, memory: int = 0) -> None:
        self._k1, self._b = k1, b
        self._run_size = max(memory // _BYTES_PER_TERM, _MIN_BLOCK)
        self._folder = folder and folder / _RUNS
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)  # left by a killed process
            self._folder.mkdir()
        self._terms, self._lengths = array("i"), array("i")
        self._run_start = 0
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
        if self._folder and len(self._terms) >= self._run_size:
            self._end_run()

    def in_memory(self) -> tuple[Int64s, Int32s, Float32s]:
        """The starts, passages and scores of all postings."""
        starts = self._count()
        passages, scores = zip(*self._blocks(starts))
        return starts, np.concatenate(passages), np.concatenate(scores)

    def write(self, folder: Path, progress: ProgressCallback = no_progress) -> None:
        """Write the postings of all passages into a folder."""
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
        """Sort the passages since the last run by term, and store them."""
        lengths = np.asarray(self._lengths)[self._run_start :]
        keys = np.asarray(self._terms).astype(np.int64) << 32
        self._terms = array("i")
        keys |= np.repeat(np.arange(self._run_start, self._run_start + len(lengths)), lengths)
        keys.sort()
        firsts = np.flatnonzero(np.diff(keys, prepend=-1))
        run = np.empty((3, len(firsts)), dtype=np.int32)
        run[2] = np.diff(firsts, append=len(keys))
        keys = keys[firsts]
        run[0], run[1] = keys >> 32, keys & 0xFFFFFFFF
        self._run_start = len(self._lengths)

        frequencies = np.bincount(run[0], minlength=len(self._frequencies))
        frequencies[: len(self._frequencies)] += self._frequencies
        self._frequencies = frequencies
        if self._folder:
            file = self._folder / f"run-{len(self._runs)}.npy"
            np.save(file, run)
            self._runs.append(file)
        else:
            self._runs.append(run)

    def _count(self) -> Int64s:
        """End the last run; returns the start of each term's postings."""
        self._end_run()
        # 64 bits: large corpora have more postings than fit into 32 bits.
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self._frequencies)])

    def _blocks(self, starts: Int64s) -> Iterator[tuple[Int32s, Float32s]]:
        """The passages and scores of all postings, in blocks of as many terms as fit into memory."""
        lengths = np.asarray(self._lengths)
        mean_length = float(lengths.mean(dtype=np.float64))
        frequencies = self._frequencies
        idf = np.log(1 + (len(lengths) - frequencies + 0.5) / (frequencies + 0.5)).astype(np.float32)
        for first, end in self._ranges(starts):
            passages: Int32s = np.empty(starts[end] - starts[first], dtype=np.int32)
            scores: Float32s = np.empty(len(passages), dtype=np.float32)
            next_free = starts[first:end] - starts[first]  # where the next posting of each term goes
            for terms, found, counts in self._chunks(first, end):
                # A chunk is sorted by term: a posting goes to its term's next free position plus its rank in the chunk.
                nth = terms - terms[0]
                sizes = np.bincount(nth)
                heads = next_free[terms[0] - first :][: len(sizes)]
                targets = np.arange(len(nth)) + (heads - (np.cumsum(sizes) - sizes))[nth]
                passages[targets] = found
                # In double precision and in the library's order of operations, for equality to the last bit.
                normalization = self._k1 * ((1 - self._b) + self._b * lengths[found] / mean_length)
                scores[targets] = idf[terms] * (counts / (normalization + counts))
                heads += sizes
            yield passages, scores

    def _ranges(self, starts: Int64s) -> Iterator[tuple[int, int]]:
        """Ranges of terms whose postings fit into memory; a single term may exceed it."""
        first = 0
        while first < len(starts) - 1:
            last = np.searchsorted(starts, starts[first] + self._run_size, side="right") - 1
            end = max(first + 1, int(last)) if self._folder else len(starts) - 1
            yield first, end
            first = end

    def _chunks(self, first: int, end: int) -> Iterator[tuple[Int32s, Int32s, Int32s]]:
        """The postings of a range of terms, run by run, in chunks."""
        for run in self._runs:
            # Mapped again for each range, so that pages already read do not stay in memory.
            rows = np.load(run, mmap_mode="r") if isinstance(run, Path) else run
            begin, stop = (int(position) for position in np.searchsorted(rows[0], (first, end)))
            for start in range(begin, stop, _MIN_BLOCK):
                terms, passages, counts = np.asarray(rows[:, start : min(start + _MIN_BLOCK, stop)])
                yield terms, passages, counts
