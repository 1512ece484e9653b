"""The nearest of many vectors, on FAISS: three layouts that trade memory, time and exactness.

In: the vectors of all passages (vectors.py). Out: for the vectors of queries, the positions with the largest inner
products. Everything lies on disk and is mapped into memory; nothing is read that is not searched.

flat     compares all: exact; time grows with the corpus. Disk: 4 bytes a number
hnsw     walks a graph of neighbours: milliseconds; building it holds all vectors in memory. Disk: 2 bytes a number and
         270 bytes a passage for the graph
ivfpq    looks into the cells nearest to the query, at vectors compressed to a byte for every 8 numbers, and compares
         the best of those exactly. In memory: the compressed vectors. Disk: 2 bytes a number for the exact comparison
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.retrieval.base import ProgressCallback
from stepladder.retrieval.index.dense_config import Layout
from stepladder.retrieval.index.encoder import Vectors
from stepladder.retrieval.index.memory_budget import format_bytes
from stepladder.retrieval.index.vectors import StoredVectors, open_vectors

Positions = npt.NDArray[np.int64]

_INDEX = "vectors.faiss"
#: Vectors that are taken into memory at a time.
_BLOCK = 65_536

#: Neighbours a vector has in the graph, and how many are looked at when it is put in, and at least in a search.
_NEIGHBOURS, _BUILD_WIDTH, _SEARCH_WIDTH = 32, 100, 128
_GRAPH_BYTES = 4 * (2 * _NEIGHBOURS + 4)

#: Numbers of a vector that are compressed to one byte; PQ with 256 centroids needs so many vectors to learn from.
_NUMBERS_A_BYTE, _FEWEST = 8, 10_000
#: Cells that are looked into, and how many candidates a result are compared exactly.
_CELLS, _CANDIDATES = 32, 16


class VectorIndex(ABC):
    """Finds the vectors nearest to others."""

    @abstractmethod
    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        """Inner products and positions of the k best, best first; position -1 where there are fewer."""

    @abstractmethod
    def vector(self, position: int) -> Vectors:
        """The vector at a position."""

    def close(self) -> None:  # noqa: B027
        """Let go of what is held."""


def build_vector_index(layout: Layout, vectors: StoredVectors, folder: Path, memory: int, progress: ProgressCallback) -> None:
    """Write the files of a layout into a folder. flat and ivfpq also need the vectors' own file there."""
    check_memory(layout, len(vectors), vectors.shape[1], memory)
    if layout is Layout.hnsw:
        _build_hnsw(vectors, folder, progress)
    elif layout is Layout.ivfpq:
        _build_ivfpq(vectors, folder, memory, progress)


def open_vector_index(layout: Layout, folder: Path) -> VectorIndex:
    """What `build_vector_index` wrote, ready to search."""
    if layout is Layout.flat:
        return FlatIndex(open_vectors(folder))
    return _Hnsw(folder) if layout is Layout.hnsw else _IvfPq(folder)


def check_memory(layout: Layout, count: int, dimensions: int, memory: int) -> None:
    """Raise where building a layout cannot do with the memory, before hours are spent on it."""
    needed = _needed(layout, count, dimensions)
    if needed > memory:
        smaller = [each for each in Layout if _needed(each, count, dimensions) <= memory]
        hint = f", or choose the kind {' or '.join(smaller)}" if smaller else ""
        raise StepladderError(
            f"building {layout} of {count:,} vectors takes about {format_bytes(needed)}, and the memory that was "
            f"allowed is {format_bytes(memory)}: allow more (--memory){hint}"
        )
    if layout is Layout.ivfpq and count < _FEWEST:
        raise StepladderError(
            f"ivfpq learns its compression from the vectors, and {count:,} passages are too few ({_FEWEST:,} or more): "
            "choose the kind flat, which is quick at this size"
        )


def _needed(layout: Layout, count: int, dimensions: int) -> int:
    block = 4 * _BLOCK * dimensions
    if layout is Layout.hnsw:
        return block + count * (2 * dimensions + _GRAPH_BYTES)
    if layout is Layout.ivfpq:
        return 2 * block + count * (dimensions // _NUMBERS_A_BYTE + 8)
    return 0


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise StepladderError(f"indexes of embeddings need FAISS: {install_command('dense')}") from error
    return faiss


def _read_index(folder: Path, flags: int) -> Any:
    try:
        return _faiss().read_index(str(folder / _INDEX), flags)
    except RuntimeError as error:
        raise ValueError(f"FAISS cannot read {_INDEX}: {str(error).splitlines()[0]}") from error


def _block(vectors: StoredVectors, start: int) -> Vectors:
    return np.ascontiguousarray(vectors[start : start + _BLOCK], dtype=np.float32)


class FlatIndex(VectorIndex):
    """Compares all vectors; they may also be mapped into memory."""

    def __init__(self, vectors: StoredVectors) -> None:
        self._faiss = _faiss()
        self._vectors = vectors

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        faiss = self._faiss
        heap = faiss.ResultHeap(len(queries), min(k, len(self._vectors)), keep_max=True)
        for start in range(0, len(self._vectors), _BLOCK):
            block = _block(self._vectors, start)
            scores, found = faiss.knn(queries, block, min(k, len(block)), metric=faiss.METRIC_INNER_PRODUCT)
            heap.add_result(scores, found + start)
        heap.finalize()
        return heap.D, heap.I

    def vector(self, position: int) -> Vectors:
        return np.asarray(self._vectors[position], dtype=np.float32)


def _build_hnsw(vectors: StoredVectors, folder: Path, progress: ProgressCallback) -> None:
    faiss = _faiss()
    count, dimensions = vectors.shape
    index = faiss.IndexHNSWSQ(dimensions, faiss.ScalarQuantizer.QT_fp16, _NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _BUILD_WIDTH
    index.train(_block(vectors, 0))  # fp16 has nothing to learn, and FAISS insists
    for start in range(0, count, _BLOCK):
        progress("Linking neighbours", start, count)
        index.add(_block(vectors, start))
    progress("Linking neighbours", count, count)
    faiss.write_index(index, str(folder / _INDEX))


class _Hnsw(VectorIndex):
    def __init__(self, folder: Path) -> None:
        self._faiss = _faiss()
        self._index = _read_index(folder, self._faiss.IO_FLAG_MMAP_IFC)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        width = self._faiss.SearchParametersHNSW(efSearch=max(_SEARCH_WIDTH, 2 * k))
        scores, found = self._index.search(queries, k, params=width)
        return scores, found

    def vector(self, position: int) -> Vectors:
        return np.asarray(self._index.reconstruct(position), dtype=np.float32)


def _build_ivfpq(vectors: StoredVectors, folder: Path, memory: int, progress: ProgressCallback) -> None:
    faiss = _faiss()
    count, dimensions = vectors.shape
    if dimensions % _NUMBERS_A_BYTE:
        raise StepladderError(f"ivfpq needs vectors of a multiple of {_NUMBERS_A_BYTE} numbers, not {dimensions}")
    cells = max(64, min(int(4 * count**0.5), count // 64))
    coarse = faiss.IndexFlatIP(dimensions)
    index = faiss.IndexIVFPQ(coarse, dimensions, cells, dimensions // _NUMBERS_A_BYTE, 8, faiss.METRIC_INNER_PRODUCT)
    room = max(_BLOCK, (memory - _needed(Layout.ivfpq, count, dimensions)) // (4 * dimensions))
    sample = min(count, room, max(_BLOCK, 64 * cells))
    progress(f"Learning {cells:,} cells", 0, 0)
    chosen = np.sort(np.random.default_rng(0).choice(count, sample, replace=False))
    index.train(np.ascontiguousarray(vectors[chosen], dtype=np.float32))
    for start in range(0, count, _BLOCK):
        progress("Compressing vectors", start, count)
        index.add(_block(vectors, start))
    progress("Compressing vectors", count, count)
    faiss.write_index(index, str(folder / _INDEX))


class _IvfPq(VectorIndex):
    def __init__(self, folder: Path) -> None:
        self._faiss = _faiss()
        self._index = _read_index(folder, self._faiss.IO_FLAG_MMAP)
        self._vectors = open_vectors(folder)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        cells = self._faiss.SearchParametersIVF(nprobe=_CELLS)
        _, rough = self._index.search(queries, max(_CANDIDATES * k, 64), params=cells)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        found = np.full((len(queries), k), -1, dtype=np.int64)
        for row, (query, candidates) in enumerate(zip(queries, rough)):
            there = np.sort(candidates[candidates >= 0])
            exact = self._vectors[there].astype(np.float32) @ query
            best = np.argsort(-exact, kind="stable")[:k]
            scores[row, : len(best)], found[row, : len(best)] = exact[best], there[best]
        return scores, found

    def vector(self, position: int) -> Vectors:
        return np.asarray(self._vectors[position], dtype=np.float32)
