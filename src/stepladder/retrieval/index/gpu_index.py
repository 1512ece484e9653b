"""Exact search on GPUs, where a FAISS with GPU support is installed (faiss-gpu).

In: vectors, which may be memory-mapped, and a device. Out: a `VectorIndex` with the vectors in GPU memory, a contiguous
part on each GPU; None if FAISS has no GPU, the device is the CPU or the vectors do not fit.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from stepladder.core.memory import format_bytes
from stepladder.retrieval.index.encoder import Vectors
from stepladder.retrieval.index.vector_index import (
    Metric,
    Positions,
    VectorIndex,
    aligned_block,
    best_of,
    block_rows,
    import_faiss,
)
from stepladder.retrieval.index.vectors import StoredVectors

log = logging.getLogger(__name__)

#: Share of the free GPU memory that vectors may take: the rest is for searching and for the encoder.
_SHARE = 0.8


def open_on_gpus(vectors: StoredVectors, metric: Metric, device: str) -> "GpuIndex | None":
    """The vectors on the GPUs of a device: `cuda` and `auto` are all, `cuda:1` is one.

    In fp32 if they fit, else in fp16, which rounds scores.
    """
    gpus = _gpus(device)
    if not gpus:
        return None
    free = sum(_free_bytes(gpu) for gpu in gpus) * _SHARE
    for half in (False, True):
        if vectors.size * (2 if half else 4) <= free:
            return GpuIndex(vectors, metric, gpus, half)
    log.warning(
        "the vectors need %s in fp16, and the GPUs have %s for them: they are searched on the CPU",
        format_bytes(2 * vectors.size),
        format_bytes(int(free)),
    )
    return None


def _gpus(device: str) -> list[int]:
    """The GPUs that FAISS can use."""
    faiss = import_faiss()
    count = faiss.get_num_gpus() if hasattr(faiss, "GpuIndexFlat") else 0
    name, _, number = device.partition(":")
    if name not in ("cuda", "auto"):
        return []
    return [gpu for gpu in range(count) if not number or gpu == int(number)]


def _free_bytes(gpu: int) -> int:
    import torch

    return int(torch.cuda.mem_get_info(gpu)[0])


class GpuIndex(VectorIndex):
    """Exact search over vectors on one or several GPUs."""

    def __init__(self, vectors: StoredVectors, metric: Metric, gpus: list[int], half: bool) -> None:
        self._vectors, self._metric = vectors, metric
        #: Kept as long as the parts, which use them.
        self._resources: list[Any] = []
        edges = np.linspace(0, len(vectors), len(gpus) + 1).astype(int).tolist()
        #: Each part with the position of its first vector.
        self._parts = [(start, self._load(gpu, start, stop, half)) for gpu, start, stop in zip(gpus, edges, edges[1:])]

    def _load(self, gpu: int, start: int, stop: int, half: bool) -> Any:
        faiss = import_faiss()
        config = faiss.GpuIndexFlatConfig()
        config.device, config.useFloat16 = gpu, half
        metric = faiss.METRIC_INNER_PRODUCT if self._metric == "inner_product" else faiss.METRIC_L2
        resources = faiss.StandardGpuResources()
        self._resources.append(resources)
        part = faiss.GpuIndexFlat(resources, self._vectors.shape[1], metric, config)
        rows = block_rows(self._vectors)
        for first in range(start, stop, rows):
            part.add(aligned_block(self._vectors[first : min(first + rows, stop)]))
        return part

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        def one(part: tuple[int, Any]) -> tuple[Vectors, Positions]:
            start, index = part
            scores, found = index.search(queries, min(k, index.ntotal))
            return scores, found + start

        with ThreadPoolExecutor(len(self._parts)) as pool:
            return best_of(pool.map(one, self._parts), len(queries), min(k, len(self._vectors)), self._metric)

    def vector(self, position: int) -> Vectors:
        return np.asarray(self._vectors[position], dtype=np.float32)
