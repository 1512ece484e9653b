"""Embeddings in Milvus: in a folder (milvus-lite, in this process), or in a server that many machines share.

In: passages. Out: `build_milvus` puts their vectors into a collection (milvus_collection.py), `open_milvus` searches
there; the passages stay in the index folder.

    milvus.json   where the vectors are: address, collection, index
    milvus.db     they themselves, where no address is given
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
    VectorUpload,
    count_of,
    dimensions_of,
)
from stepladder.retrieval.index.milvus_server import ANSWER_SECONDS, WORK_SECONDS, Milvus, MilvusError
from stepladder.retrieval.index.vectors import StoredVectors, encode_passages

_DESCRIPTION = "milvus.json"

#: milvus-lite holds a vector several times. Beyond so many it also rewrites its files whenever it is opened.
_COPIES, _MOST_EMBEDDED = 5, 1_000_000

#: Milvus's own limit on results, and queries a request.
_MOST_RESULTS, _QUERIES = 16_384, 1024
#: HNSW: neighbours that are looked at, at least.
_WIDTH = 128


def build_milvus(
    passages: Passages,
    to: PartialFolder,
    settings: MilvusConfig,
    *,
    memory: int = DEFAULT_MEMORY,
    progress: ProgressCallback = no_progress,
) -> BuildDetails:
    """Put the vectors of the passages into Milvus, going on where an earlier attempt ended; returns how."""
    encoder = Encoder(settings, device=settings.device, dtype=settings.dtype, batch=settings.batch)
    if settings.uri is None:
        _check_size(len(passages), encoder.dimensions, memory)
    Milvus(settings.uri, to.folder / EMBEDDED).close()  # a server that is down is found before hours of encoding
    # Among the notes, which go when the index is finished: Milvus has the vectors then.
    vectors = encode_passages(passages, encoder, to.scratch, to.scratch, np.float32, memory, progress)
    index = settings.milvus_index or ("HNSW" if settings.uri else "FLAT")
    collection = settings.collection or _name(to.folder, vectors)
    place = CollectionInfo(settings.uri, collection, index, encoder.dimensions)
    VectorUpload(vectors, place, to, progress).run()
    if place.uri is None:
        _settle(place, to.folder)
    with atomic_file(to.folder / _DESCRIPTION) as file:
        json.dump(asdict(place), file, indent=2)
    return {
        **write_description(encoder, to.folder, "milvus", f"pymilvus {version('pymilvus')}"),
        "uri": place.uri or EMBEDDED,
        "collection": place.collection,
        "milvus_index": place.index,
    }


def open_milvus(folder: Path, passages: Passages, *, device: str = "cpu") -> DenseIndex:
    """The index in a folder that `build_milvus` wrote, of these passages; queries are encoded on the device."""
    place = CollectionInfo(**json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8")))
    nearest = _InMilvus(place, folder, len(passages))
    try:
        return DenseIndex.open(folder, passages, device=device, nearest=nearest)
    except BaseException:
        nearest.close()
        raise


class _InMilvus(VectorIndex):
    def __init__(self, place: CollectionInfo, folder: Path, count: int) -> None:
        self._place, self._milvus = place, place.connect(folder)
        try:
            self._check(folder, count)
        except BaseException:
            self._milvus.close()
            raise

    def _check(self, folder: Path, count: int) -> None:
        """Raise where the collection is not the one that was built."""
        name, client, where = self._place.collection, self._milvus.client, self._milvus.where
        again = f"Build {folder} again, or put the collection back"
        with self._milvus.explained():
            if not client.has_collection(name, timeout=ANSWER_SECONDS):
                raise MilvusError(f"{where} has no collection '{name}'. {again}")
            dimensions = dimensions_of(client, name)
            if dimensions != self._place.dimensions:
                found = f"vectors of {dimensions} numbers" if dimensions else "other fields"
                raise MilvusError(f"{where}: '{name}' has {found}, not of {self._place.dimensions}. {again}")
            client.load_collection(name, timeout=WORK_SECONDS)
        found_count = count_of(self._milvus, name)
        if found_count != count:
            raise MilvusError(f"{where}: '{name}' has {found_count:,} vectors for {count:,} passages. {again}")

    def search(self, queries: Vectors, k: int) -> tuple[Vectors, Positions]:
        if k > _MOST_RESULTS:
            raise StepladderError(f"Milvus finds up to {_MOST_RESULTS:,} passages a query, not {k:,}")
        scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
        positions = np.full((len(queries), k), -1, dtype=np.int64)
        wide = {"ef": max(_WIDTH, k)} if self._place.index == "HNSW" else {}
        for start in range(0, len(queries), _QUERIES):
            with self._milvus.explained():
                found = self._milvus.client.search(
                    self._place.collection,
                    data=list(queries[start : start + _QUERIES]),
                    limit=k,
                    output_fields=[POSITION],  # none would be all of them with milvus-lite
                    search_params={"metric_type": "IP", "params": wide},
                    anns_field=VECTOR,
                    timeout=ANSWER_SECONDS,
                )
            for row, hits in enumerate(found, start=start):
                scores[row, : len(hits)], positions[row, : len(hits)] = hits.distances, hits.ids
        return scores, positions

    def vector(self, position: int) -> Vectors:
        with self._milvus.explained():
            found = self._milvus.client.get(
                self._place.collection, ids=[position], output_fields=[VECTOR], timeout=ANSWER_SECONDS
            )
        if not found:
            raise MilvusError(f"{self._milvus.where}: '{self._place.collection}' has no vector {position}: build again")
        return np.asarray(found[0][VECTOR], dtype=np.float32)

    def close(self) -> None:
        self._milvus.close()


def _name(folder: Path, vectors: StoredVectors) -> str:
    """A collection's name, of the folder's and of what is in it."""
    plain = re.sub(r"\W+", "_", folder.name.removesuffix(".unfinished"), flags=re.ASCII).strip("_")
    return f"stepladder_{plain[:100]}_{blake2b(np.ascontiguousarray(vectors).data, digest_size=4).hexdigest()}"


def _check_size(count: int, dimensions: int, memory: int) -> None:
    """Raise where milvus-lite cannot do with the memory, or would take hours to open."""
    needed = _COPIES * 4 * dimensions * count
    if count > _MOST_EMBEDDED:
        problem, more = f"is for up to {_MOST_EMBEDDED:,} passages, and there are {count:,}", ""
    elif needed > memory:
        problem = (
            f"takes about {format_bytes(needed)} for {count:,} vectors, and the memory that was allowed is "
            f"{format_bytes(memory)}"
        )
        more = "allow more (--memory), "
    else:
        return
    raise StepladderError(
        f"Milvus without a server {problem}: {more}give the address of a server (uri), or choose the kind hnsw or ivfpq"
    )


def _settle(place: CollectionInfo, folder: Path) -> None:
    """Open and close milvus-lite until it finds nothing to merge: the files of a finished index do not change."""
    before, now = None, _sizes(folder / EMBEDDED)
    while before != now:
        with closing(place.connect(folder)) as milvus, milvus.explained():
            milvus.client.load_collection(place.collection, timeout=WORK_SECONDS)
        before, now = now, _sizes(folder / EMBEDDED)


def _sizes(folder: Path) -> dict[Path, int]:
    return {each: each.stat().st_size for each in folder.rglob("*") if each.is_file()}
