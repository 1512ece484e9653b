"""Vector indexes with FAISS: three layouts that trade memory, time and exactness.

In: the vectors of all passages (vectors.py). Out: for query vectors, the positions with the largest inner products. All
files are memory-mapped.

flat     exhaustive search: exact; time grows with the corpus. Disk: 4 bytes per dimension
hnsw     graph search: milliseconds; building holds all vectors in memory. Disk: 2 bytes per dimension and 270 bytes per
         passage for the graph
ivfpq    searches the cells nearest to the query with vectors compressed to one byte per 8 dimensions, and reranks the
         best candidates exactly. In memory: the compressed vectors. Disk: 2 bytes per dimension for the reranking
"""

from pathlib import Path
from typing import Any

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.memory import format_bytes
from stepladder.retrieval.base import ProgressCallback
from stepladder.retrieval.index.dense_config import Layout
from stepladder.retrieval.index.encoder import Vectors
from stepladder.retrieval.index.gpu_index import open_on_gpus
from stepladder.retrieval.index.vector_index import FlatIndex, Positions, VectorIndex, import_faiss
from stepladder.retrieval.index.vectors import StoredVectors, open_vectors

_INDEX = "vectors.faiss"
#: Vectors loaded into memory at a time.
_BLOCK = 65_536

#: HNSW parameters M, efConstruction and (minimum) efSearch.
_M, _EF_CONSTRUCTION, _MIN_EF_SEARCH = 32, 100, 128
_GRAPH_BYTES = 4 * (2 * _M + 4)

#: PQ: dimensions per byte, and the minimum number of vectors to train 256 centroids.
_DIMENSIONS_PER_BYTE, _MIN_TRAINING = 8, 10_000
#: IVF: cells to probe (nprobe), and exactly reranked candidates per result.
_PROBES, _CANDIDATES = 32, 16


def build_vector_index(
    layout: Layout, vectors: StoredVectors, folder: Path, memory: int, progress: ProgressCallback
) -> None:
    """Write the files of a layout into a folder. flat and ivfpq also need the vector file there."""
    check_memory(layout, len(vectors), vectors.shape[1], memory)
    if layout is Layout.hnsw:
        _build_hnsw(vectors, folder, progress)
    elif layout is Layout.ivfpq:
        _build_ivfpq(vectors, folder, memory, progress)


def open_vector_index(layout: Layout, folder: Path, device: str = "cpu") -> VectorIndex:
    """Open an index written by `build_vector_index`; flat is searched on the GPUs of the device, if FAISS has any."""
    if layout is Layout.flat:
        vectors = open_vectors(folder)
        return open_on_gpus(vectors, "inner_product", device) or FlatIndex(vectors)
    return _Hnsw(folder) if layout is Layout.hnsw else _IvfPq(folder)


def check_memory(layout: Layout, count: int, dimensions: int, memory: int) -> None:
    """Raise if building a layout would exceed the memory limit, before hours are spent on it."""
    needed = _needed(layout, count, dimensions)
    if needed > memory:
        smaller = [each for each in Layout if _needed(each, count, dimensions) <= memory]
        hint = f", or use the kind {' or '.join(smaller)}" if smaller else ""
        raise StepladderError(
            f"building {layout} of {count:,} vectors needs about {format_bytes(needed)}, and the memory limit is "
            f"{format_bytes(memory)}: raise it (--memory){hint}"
        )
    if layout is Layout.ivfpq and count < _MIN_TRAINING:
        raise StepladderError(
            f"ivfpq trains its compression on the vectors; {count:,} passages are too few (minimum {_MIN_TRAINING:,}): "
            "use the kind flat, which is fast at this size"
        )


def _needed(layout: Layout, count: int, dimensions: int) -> int:
    block = 4 * _BLOCK * dimensions
    if layout is Layout.hnsw:
        return block + count * (2 * dimensions + _GRAPH_BYTES)
    if layout is Layout.ivfpq:
        return 2 * block + count * (dimensions // _DIMENSIONS_PER_BYTE + 8)
    return 0


def _read_index(folder: Path, flags: int) -> Any:
    try:
        return import_faiss().read_index(str(folder / _INDEX), flags)
    except RuntimeError as error:
        raise ValueError(f"FAISS cannot read {_INDEX}: {str(error).splitlines()[0]}") from error


def _block(vectors: StoredVectors, start: int) -> Vectors:
    return np.ascontiguousarray(vectors[start : start + _BLOCK], dtype=np.float32)


def _add_and_write(
    index: Any, vectors: StoredVectors, folder: Path, progress: ProgressCallback, description: str
) -> None:
    count = len(vectors)
    for start in range(0, count, _BLOCK):
        progress(description, start, count)
        index.add(_block(vectors, start))
    progress(description, count, count)
    import_faiss().write_index(index, str(folder / _INDEX))


def _build_hnsw(vectors: StoredVectors, folder: Path, progress: ProgressCallback) -> None:
    faiss = import_faiss()
    index = faiss.IndexHNSWSQ(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, _M, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _EF_CONSTRUCTION
    index.train(_block(vectors, 0))  # required by FAISS, although fp16 needs no training
    _add_and_write(index, vectors, folder, progress, "Building the HNSW graph")


class _Hnsw(VectorIndex):
    def __init__(self, folder: Path) -> None:
        self._faiss = import_faiss()
        self._index = _read_index(folder, self._faiss.IO_FLAG_MMAP_IFC)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        parameters = self._faiss.SearchParametersHNSW(efSearch=max(_MIN_EF_SEARCH, 2 * k))
        scores, found = self._index.search(queries, k, params=parameters)
        return scores, found

    def vector(self, position: int) -> Vectors:
        return np.asarray(self._index.reconstruct(position), dtype=np.float32)


def _build_ivfpq(vectors: StoredVectors, folder: Path, memory: int, progress: ProgressCallback) -> None:
    faiss = import_faiss()
    count, dimensions = vectors.shape
    if dimensions % _DIMENSIONS_PER_BYTE:
        raise StepladderError(
            f"ivfpq needs vectors with a multiple of {_DIMENSIONS_PER_BYTE} dimensions, not {dimensions}"
        )
    cells = max(64, min(int(4 * count**0.5), count // 64))
    coarse = faiss.IndexFlatIP(dimensions)
    code_bytes = dimensions // _DIMENSIONS_PER_BYTE
    index = faiss.IndexIVFPQ(coarse, dimensions, cells, code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
    limit = max(_BLOCK, (memory - _needed(Layout.ivfpq, count, dimensions)) // (4 * dimensions))
    sample = min(count, limit, max(_BLOCK, 64 * cells))
    progress(f"Training {cells:,} cells", 0, 0)
    chosen = np.sort(np.random.default_rng(0).choice(count, sample, replace=False))
    index.train(np.ascontiguousarray(vectors[chosen], dtype=np.float32))
    _add_and_write(index, vectors, folder, progress, "Compressing vectors")


class _IvfPq(FlatIndex):
    def __init__(self, folder: Path) -> None:
        super().__init__(open_vectors(folder))
        self._index = _read_index(folder, self._faiss.IO_FLAG_MMAP)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        parameters = self._faiss.SearchParametersIVF(nprobe=_PROBES)
        _, approximate = self._index.search(queries, max(_CANDIDATES * k, 64), params=parameters)
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        found = np.full((len(queries), k), -1, dtype=np.int64)
        for row, (query, candidates) in enumerate(zip(queries, approximate)):
            positions = np.sort(candidates[candidates >= 0])
            exact = self._vectors[positions].astype(np.float32) @ query
            best = np.argsort(-exact, kind="stable")[:k]
            scores[row, : len(best)], found[row, : len(best)] = exact[best], positions[best]
        return scores, found
