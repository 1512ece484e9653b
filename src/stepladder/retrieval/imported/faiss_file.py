"""FAISS index files: their header, read without loading them, and their search by memory map.

In: a file that `faiss.write_index` has written. Out: its type, dimensions, count and metric (`read_header`), and a
`VectorIndex` (`open_faiss`).

    flat (IndexFlatIP, IndexFlatL2)   the vectors are mapped and searched block by block, or copied to GPUs
    HNSW, PQ, SQ                      mapped by FAISS itself
    IVF, also behind a transform      FAISS leaves the inverted lists on disk
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.retrieval.index.encoder import Vectors
from stepladder.retrieval.index.gpu_index import open_on_gpus
from stepladder.retrieval.index.vector_index import FlatIndex, Metric, Positions, VectorIndex, import_faiss

#: The start of every file of float vectors: type, dimensions, count, two unused numbers, is_trained, metric.
_HEADER = struct.Struct("<4siqqq?i")
#: In a flat file, the number of floats follows, and then the floats.
_LENGTH = struct.Struct("<Q")
_FLAT = {"IxF2", "IxFI", "IxFl"}
#: Types whose inverted lists FAISS can leave on disk. The others are mapped whole.
_INVERTED = ("Iw", "Iv", "IxPT")
_METRICS: dict[int, Metric] = {0: "inner_product", 1: "l2"}
#: More dimensions than any encoder has: such a header is damaged.
_MAX_DIMENSIONS = 2**20


class FaissFileError(StepladderError):
    """A file that is not a usable FAISS index."""


@dataclass(frozen=True, slots=True)
class FaissHeader:
    """What a file says about its index."""

    #: FAISS's four letters, such as IxFI.
    kind: str
    dimensions: int
    count: int
    metric: Metric
    #: Where the vectors of a flat index start, in bytes; None for other types.
    vectors_at: int | None


def read_header(path: Path) -> FaissHeader:
    """The header of a file; raises if it is not a complete FAISS index."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(_HEADER.size + _LENGTH.size)
    except OSError as error:
        raise FaissFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    if start[:2] == b"IB":
        raise FaissFileError(f"{path}: an index of binary vectors; expected one of float vectors")
    if len(start) < _HEADER.size or not start[:4].isalnum() or start[:1] != b"I":
        raise FaissFileError(f"{path}: not a FAISS index (it starts with {start[:4]!r}); expected one of write_index")
    kind, dimensions, count, _, _, trained, metric = _HEADER.unpack_from(start)
    if not 0 < dimensions <= _MAX_DIMENSIONS or count < 0:
        raise FaissFileError(f"{path}: a damaged FAISS index: {dimensions} dimensions, {count} vectors")
    if metric not in _METRICS:
        raise FaissFileError(f"{path}: FAISS metric {metric}; expected 0 (inner product) or 1 (L2)")
    if not trained or count == 0:
        raise FaissFileError(f"{path}: the FAISS index has no vectors")
    header = FaissHeader(kind.decode(), dimensions, count, _METRICS[metric], None)
    if header.kind not in _FLAT:
        return header
    floats = _LENGTH.unpack_from(start, _HEADER.size)[0] if len(start) == _HEADER.size + _LENGTH.size else 0
    expected = len(start) + 4 * count * dimensions
    if floats != count * dimensions or size != expected:
        raise FaissFileError(
            f"{path}: {count:,} vectors of {dimensions} dimensions take {expected:,} bytes, and the file has {size:,}: "
            "download it again; if it came in parts, join all of them (cat part_* > e5_Flat.index)"
        )
    return FaissHeader(header.kind, dimensions, count, header.metric, len(start))


def open_faiss(path: Path, header: FaissHeader, *, device: str, nprobe: int, ef_search: int) -> VectorIndex:
    """The index in a file. `nprobe` and `ef_search` are the least that an IVF and an HNSW index search."""
    if header.vectors_at is None:
        return _OtherIndex(path, header, nprobe, ef_search)
    shape = header.count, header.dimensions
    # A plain array view: slicing a memmap is slow.
    vectors = np.asarray(np.memmap(path, dtype="<f4", mode="r", offset=header.vectors_at, shape=shape))
    return open_on_gpus(vectors, header.metric, device) or FlatIndex(vectors, header.metric)


class _OtherIndex(VectorIndex):
    """An index of any other type, opened by FAISS."""

    def __init__(self, path: Path, header: FaissHeader, nprobe: int, ef_search: int) -> None:
        faiss = import_faiss()
        flags = faiss.IO_FLAG_MMAP if header.kind.startswith(_INVERTED) else faiss.IO_FLAG_MMAP_IFC
        try:
            self._index: Any = faiss.read_index(str(path), flags)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise FaissFileError(f"{path}: FAISS cannot read it: {reason}; download it again") from error
        self._sign = 1.0 if header.metric == "inner_product" else -1.0
        inverted = faiss.try_extract_index_ivf(self._index)
        if inverted is not None:
            inverted.nprobe = min(max(inverted.nprobe, nprobe), inverted.nlist)
        if hasattr(self._index, "hnsw"):
            self._index.hnsw.efSearch = max(self._index.hnsw.efSearch, ef_search)

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        scores, found = self._index.search(queries, k)
        return self._sign * scores, found

    def vector(self, position: int) -> Vectors:
        return np.asarray(self._index.reconstruct(position), dtype=np.float32)
