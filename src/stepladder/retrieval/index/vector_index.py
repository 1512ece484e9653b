"""Nearest-neighbor search over vectors, and the exact one, block by block.

In: query vectors, and vectors that may be memory-mapped, in half precision or not aligned (as in a FAISS file). Out:
the k best positions with their scores, larger is better: inner products, or negative squared distances.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.retrieval.index.encoder import Vectors
from stepladder.retrieval.index.vectors import StoredVectors

Positions = npt.NDArray[np.int64]
#: What is compared. l2 is the squared Euclidean distance.
Metric = Literal["inner_product", "l2"]

#: Vectors that are compared at a time.
_BLOCK = 65_536
#: Bytes of vectors that are copied at a time: private memory of a search, whatever the size of the index.
_COPIED_BYTES = 48 * 2**20


class VectorIndex(ABC):
    """Nearest-neighbor search over vectors."""

    @abstractmethod
    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        """Scores and positions of the k best, best first; position -1 if there are fewer."""

    @abstractmethod
    def vector(self, position: int) -> Vectors:
        """The vector at a position."""

    def close(self) -> None:  # noqa: B027
        """Release all resources."""


def import_faiss() -> Any:
    """FAISS, whichever of its distributions is installed."""
    try:
        import faiss
    except ImportError as error:
        raise StepladderError(f"embedding indexes need FAISS: {install_command('dense')}") from error
    return faiss


def block_rows(vectors: StoredVectors) -> int:
    """How many vectors to read at a time: fewer if `aligned_block` has to copy them."""
    if vectors.dtype == np.float32 and vectors.flags.aligned:
        return _BLOCK
    dimensions: int = vectors.shape[1]
    return min(_BLOCK, max(1, _COPIED_BYTES // (4 * dimensions)))


def aligned_block(vectors: StoredVectors) -> Vectors:
    """Some vectors as FAISS needs them; copied only if they are stored in another way."""
    return np.require(vectors, np.float32, ["C", "A"])


def best_of(
    found: Iterable[tuple[Vectors, Positions]], queries: int, k: int, metric: Metric
) -> tuple[Vectors, Positions]:
    """The k best of several FAISS results (distances or inner products, positions) of the same queries."""
    faiss = import_faiss()
    heap = faiss.ResultHeap(queries, k, keep_max=metric == "inner_product")
    for values, positions in found:
        heap.add_result(values, positions)
    heap.finalize()
    return (heap.D if metric == "inner_product" else -heap.D), heap.I


class FlatIndex(VectorIndex):
    """Exact search over all vectors, which may be memory-mapped."""

    def __init__(self, vectors: StoredVectors, metric: Metric = "inner_product") -> None:
        self._faiss = import_faiss()
        self._vectors, self._metric = vectors, metric

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        faiss, rows = self._faiss, block_rows(self._vectors)
        metric = faiss.METRIC_INNER_PRODUCT if self._metric == "inner_product" else faiss.METRIC_L2

        def blocks() -> Iterable[tuple[Vectors, Positions]]:
            for start in range(0, len(self._vectors), rows):
                block = aligned_block(self._vectors[start : start + rows])
                values, found = faiss.knn(queries, block, min(k, len(block)), metric=metric)
                yield values, found + start

        return best_of(blocks(), len(queries), min(k, len(self._vectors)), self._metric)

    def vector(self, position: int) -> Vectors:
        return np.asarray(self._vectors[position], dtype=np.float32)
