"""Embedding indexes in Milvus: in a folder (milvus-lite, in this process), or on a shared server.

In: passages. Out: `build_milvus` uploads their vectors to a collection (milvus_collection.py), `open_milvus` searches
it; the passages stay in the index folder.

    milvus.json   location of the vectors: address, collection, index
    milvus.db     the vectors, if no address is given
"""

import json
import re
from contextlib import closing
from dataclasses import asdict
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import PartialFolder, atomic_file
from stepladder.retrieval.base import ProgressCallback, no_progress
from stepladder.retrieval.corpus.passage_store import Passages
from stepladder.retrieval.index.dense import DenseIndex, write_description
from stepladder.retrieval.index.dense_config import MilvusConfig
from stepladder.retrieval.index.encoder import Encoder, Vectors
from stepladder.retrieval.index.faiss_index import Positions, VectorIndex
from stepladder.retrieval.index.manifest import BuildDetails
from stepladder.retrieval.index.memory_budget import DEFAULT_MEMORY, format_bytes
from stepladder.retrieval.index.milvus_collection import (
    EMBEDDED,
    POSITION,
    VECTOR,
    CollectionInfo,
    count_of,
    dimensions_of,
    upload_vectors,
)
from stepladder.retrieval.index.milvus_server import WORK_SECONDS, Milvus, MilvusError
from stepladder.retrieval.index.registry import IndexKind
from stepladder.retrieval.index.vectors import StoredVectors, encode_passages

_DESCRIPTION = "milvus.json"

#: milvus-lite holds several copies of each vector, and beyond this size it rewrites its files whenever it is opened.
_COPIES, _MAX_EMBEDDED = 5, 1_000_000

#: Milvus's limit on results, and queries per request.
_MAX_RESULTS, _QUERIES = 16_384, 1024
#: Minimum `ef` of an HNSW search.
_MIN_EF = 128


def build_milvus(
    passages: Passages,
    to: PartialFolder,
    settings: MilvusConfig,
    memory: int = DEFAULT_MEMORY,
    progress: ProgressCallback = no_progress,
) -> BuildDetails:
    """Upload the vectors of the passages to Milvus, resuming an earlier attempt; returns the build details."""
    encoder = Encoder(settings, device=settings.device, dtype=settings.dtype, batch=settings.batch)
    if settings.uri is None:
        _check_size(len(passages), encoder.dimensions, memory)
    Milvus(settings.uri, to.folder / EMBEDDED).close()  # detect a missing server before hours of encoding
    # In the scratch folder, which is removed at the end: Milvus has the vectors then.
    vectors = encode_passages(passages, encoder, to.scratch, to.scratch, np.float32, memory, progress)
    index = settings.milvus_index or ("HNSW" if settings.uri else "FLAT")
    collection = settings.collection or _name(to.folder, vectors)
    info = CollectionInfo(settings.uri, collection, index, encoder.dimensions)
    upload_vectors(vectors, info, to, progress)
    if info.uri is None:
        _compact(info, to.folder)
    with atomic_file(to.folder / _DESCRIPTION) as file:
        json.dump(asdict(info), file, indent=2)
    return {
        **write_description(encoder, to.folder, "milvus", f"pymilvus {version('pymilvus')}"),
        "uri": info.uri or EMBEDDED,
        "collection": info.collection,
        "milvus_index": info.index,
    }


def open_milvus(folder: Path, passages: Passages, device: str = "cpu") -> DenseIndex:
    """The index in a folder written by `build_milvus`, with its passages; queries are encoded on the device."""
    info = CollectionInfo(**json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8")))
    vectors = _MilvusVectors(info, folder, len(passages))
    try:
        return DenseIndex.open(folder, passages, device=device, vectors=vectors)
    except BaseException:
        vectors.close()
        raise


class _MilvusVectors(VectorIndex):
    def __init__(self, info: CollectionInfo, folder: Path, count: int) -> None:
        self._info, self._milvus = info, info.connect(folder)
        try:
            self._check(folder, count)
        except BaseException:
            self._milvus.close()
            raise

    def _check(self, folder: Path, count: int) -> None:
        """Raise if the collection is not the one that was built."""
        name, milvus, where = self._info.collection, self._milvus, self._milvus.where
        fix = f"Rebuild {folder}, or restore the collection"
        if not milvus.call("has_collection", name):
            raise MilvusError(f"{where} has no collection '{name}'. {fix}")
        dimensions = dimensions_of(milvus, name)
        if dimensions != self._info.dimensions:
            found = f"vectors of {dimensions} dimensions" if dimensions else "other fields"
            expected = f"vectors of {self._info.dimensions} dimensions"
            raise MilvusError(f"{where}: '{name}' has {found}, expected {expected}. {fix}")
        found_count = count_of(self._milvus, name)
        if found_count != count:
            raise MilvusError(f"{where}: '{name}' has {found_count:,} vectors for {count:,} passages. {fix}")

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        if k > _MAX_RESULTS:
            raise StepladderError(f"Milvus returns up to {_MAX_RESULTS:,} passages per query, not {k:,}")
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        parameters = {"ef": max(_MIN_EF, k)} if self._info.index == "HNSW" else {}
        for start in range(0, len(queries), _QUERIES):
            found = self._milvus.call(
                "search",
                self._info.collection,
                data=list(queries[start : start + _QUERIES]),
                limit=k,
                output_fields=[POSITION],  # for milvus-lite, an empty list means all fields
                search_params={"metric_type": "IP", "params": parameters},
                anns_field=VECTOR,
            )
            for row, hits in enumerate(found, start=start):
                scores[row, : len(hits)], positions[row, : len(hits)] = hits.distances, hits.ids
        return scores, positions

    def vector(self, position: int) -> Vectors:
        name = self._info.collection
        found = self._milvus.call("get", name, ids=[position], output_fields=[VECTOR])
        if not found:
            raise MilvusError(f"{self._milvus.where}: '{name}' has no vector {position}: rebuild the index")
        return np.asarray(found[0][VECTOR], dtype=np.float32)

    def close(self) -> None:
        self._milvus.close()


def _name(folder: Path, vectors: StoredVectors) -> str:
    """A collection name from the folder's name and a hash of the vectors."""
    plain = re.sub(r"\W+", "_", folder.name.removesuffix(".unfinished"), flags=re.ASCII).strip("_")
    return f"stepladder_{plain[:100]}_{blake2b(np.ascontiguousarray(vectors).data, digest_size=4).hexdigest()}"


def _check_size(count: int, dimensions: int, memory: int) -> None:
    """Raise if milvus-lite would exceed the memory limit, or take hours to open."""
    needed = _COPIES * 4 * dimensions * count
    if count > _MAX_EMBEDDED:
        problem, more = f"is for up to {_MAX_EMBEDDED:,} passages, and there are {count:,}", ""
    elif needed > memory:
        problem = (
            f"needs about {format_bytes(needed)} for {count:,} vectors, and the memory limit is {format_bytes(memory)}"
        )
        more = "raise it (--memory), "
    else:
        return
    raise StepladderError(
        f"Milvus without a server {problem}: {more}give the address of a server (uri), or use the kind hnsw or ivfpq"
    )


def _compact(info: CollectionInfo, folder: Path) -> None:
    """Open and close milvus-lite until nothing is left to merge: the files of a finished index must not change."""
    before, now = None, _sizes(folder / EMBEDDED)
    while before != now:
        with closing(info.connect(folder)) as milvus:
            milvus.call("load_collection", info.collection, seconds=WORK_SECONDS)
        before, now = now, _sizes(folder / EMBEDDED)


def _sizes(folder: Path) -> dict[Path, int]:
    return {each: each.stat().st_size for each in folder.rglob("*") if each.is_file()}


MILVUS = IndexKind(MilvusConfig, build_milvus, open_milvus, dense=True, resumable=True)
