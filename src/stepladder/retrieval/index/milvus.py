"""Embedding indexes in Milvus: in a folder (milvus-lite, in this process), or on a shared server.

In: passages. Out: `build_milvus` uploads their vectors to a collection, with their positions as primary keys;
`open_milvus` searches it. The passages stay in the index folder. Vectors are uploaded in groups, in order: an
interrupted upload resumes with the first group that is not complete, and vectors that were already sent are replaced.

    milvus.json   location of the vectors: address, collection, index
    milvus.db     the vectors, if no address is given
"""

import json
import re
import shutil
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.extras import library_version
from stepladder.core.io.files import PartialFolder, atomic_file
from stepladder.core.io.known_servers import servers_from_files
from stepladder.core.io.retries import retry_wait
from stepladder.core.memory import format_bytes
from stepladder.retrieval.base import ProgressCallback, no_progress
from stepladder.retrieval.corpus.passage_store import Passages
from stepladder.retrieval.index.dense import DenseIndex, write_description
from stepladder.retrieval.index.dense_config import MilvusConfig
from stepladder.retrieval.index.encoder import Encoder, Vectors
from stepladder.retrieval.index.manifest import BuildDetails
from stepladder.retrieval.index.milvus_server import ANSWER_SECONDS, WORK_SECONDS, Milvus, MilvusError
from stepladder.retrieval.index.registry import DEFAULT_MEMORY, IndexKind
from stepladder.retrieval.index.vector_index import Positions, VectorIndex
from stepladder.retrieval.index.vectors import StoredVectors, encode_passages

_DESCRIPTION = "milvus.json"
#: The database of milvus-lite in the index folder.
EMBEDDED = "milvus.db"
#: The fields of a collection. The first one identifies Stepladder's collections.
POSITION, VECTOR = "stepladder_position", "vector"

#: Scratch file, written when the collection has been created.
_CREATED = "milvus-created"
#: Vectors per request, and per flush.
_BATCH, _GROUP = 1024, 16_384
#: Attempts per request, and the base of the exponential backoff in seconds.
_ATTEMPTS, _BACKOFF = 6, 1.0
#: HNSW parameters M and efConstruction. milvus-lite uses its own.
_M, _EF_CONSTRUCTION = 32, 200

#: milvus-lite holds several copies of each vector, and beyond this size it rewrites its files whenever it is opened.
_COPIES, _MAX_EMBEDDED = 5, 1_000_000

#: Milvus's limit on results, and queries per request.
_MAX_RESULTS, _QUERIES = 16_384, 1024
#: Minimum `ef` of an HNSW search.
_MIN_EF = 128


@dataclass(frozen=True, slots=True)
class _Collection:
    """The location of the vectors."""

    #: Address of a server; None means milvus-lite in the index folder.
    uri: str | None
    collection: str
    #: FLAT, HNSW or AUTOINDEX.
    index: str
    dimensions: int

    def connect(self, folder: Path) -> Milvus:
        """A connection, for an index in the folder."""
        return Milvus(self.uri, folder / EMBEDDED)


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
    info = _Collection(settings.uri, collection, index, encoder.dimensions)
    _upload_vectors(vectors, info, to, progress)
    if info.uri is None:
        _compact(info, to.folder)
    with atomic_file(to.folder / _DESCRIPTION) as file:
        json.dump(asdict(info), file, indent=2)
    return {
        **write_description(encoder, to.folder, "milvus", f"pymilvus {library_version('pymilvus')}"),
        "uri": info.uri or EMBEDDED,
        "collection": info.collection,
        "milvus_index": info.index,
    }


def open_milvus(folder: Path, passages: Passages, device: str = "cpu") -> DenseIndex:
    """The index in a folder written by `build_milvus`, with its passages; queries are encoded on the device."""
    info = _Collection(**json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8")))
    servers_from_files(info.uri)
    milvus = info.connect(folder)
    try:
        _check_collection(milvus, info, len(passages), f"Rebuild {folder}, or restore the collection")
        return DenseIndex.open(folder, passages, device=device, vectors=_MilvusVectors(info, milvus))
    except BaseException:
        milvus.close()
        raise


def _check_collection(milvus: Milvus, info: _Collection, count: int, fix: str) -> None:
    """Raise if the collection is not the one that was built."""
    name, where = info.collection, milvus.where
    if not milvus.call("has_collection", name):
        raise MilvusError(f"{where} has no collection '{name}'. {fix}")
    dimensions = _dimensions_of(milvus, name)
    if dimensions != info.dimensions:
        found = f"vectors of {dimensions} dimensions" if dimensions else "other fields"
        raise MilvusError(f"{where}: '{name}' has {found}, expected vectors of {info.dimensions} dimensions. {fix}")
    found_count = _count_of(milvus, name)
    if found_count != count:
        raise MilvusError(f"{where}: '{name}' has {found_count:,} vectors for {count:,} passages. {fix}")


class _MilvusVectors(VectorIndex):
    def __init__(self, info: _Collection, milvus: Milvus) -> None:
        self._info, self._milvus = info, milvus

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


def _upload_vectors(vectors: StoredVectors, info: _Collection, to: PartialFolder, progress: ProgressCallback) -> None:
    """Upload the vectors that an earlier attempt has not; raise if the collection is not complete at the end."""
    created, total = to.scratch / _CREATED, len(vectors)
    if info.uri is None:
        if not created.exists():
            shutil.rmtree(to.folder / EMBEDDED, ignore_errors=True)  # a partially created collection
        for index in (to.folder / EMBEDDED).rglob("*.idx"):
            index.unlink()  # may be cut off, if a build was killed; milvus-lite builds it again from the vectors
    with closing(info.connect(to.folder)) as milvus:
        start = 0
        if created.exists() and milvus.call("has_collection", info.collection):
            start = _count_of(milvus, info.collection) // _GROUP * _GROUP
        else:
            with milvus.wrap_errors():
                _create(milvus, info)
            created.touch()
        for first in range(start, total, _GROUP):
            progress("Sending vectors to Milvus", first, total)
            for batch in range(first, min(first + _GROUP, total), _BATCH):
                positions = range(batch, min(batch + _BATCH, first + _GROUP, total))
                _send(milvus, info.collection, [{POSITION: each, VECTOR: vectors[each]} for each in positions])
            if info.uri is None:  # a server persists what it accepted, milvus-lite what is flushed
                milvus.call("flush", info.collection, seconds=WORK_SECONDS)
        progress("Sending vectors to Milvus", total, total)
        milvus.call("flush", info.collection, seconds=WORK_SECONDS)
        found = _count_of(milvus, info.collection)
    if found != total:
        created.unlink()
        raise MilvusError(
            f"{milvus.where}: '{info.collection}' has {found:,} vectors after {total:,} were sent. Build again: all "
            "will be sent again"
        )


def _send(milvus: Milvus, collection: str, rows: list[dict[str, Any]]) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            milvus.call("upsert", collection, rows)
            return
        except MilvusError as error:
            if attempt == _ATTEMPTS:
                raise MilvusError(f"{error} ({_ATTEMPTS} attempts; run the same command again to resume)") from error
            time.sleep(retry_wait(attempt, {}, _BACKOFF) or 0.0)


def _create(milvus: Milvus, info: _Collection) -> None:
    """Create the collection; an earlier one of Stepladder with the same name is replaced."""
    from pymilvus import DataType  # type: ignore[import-untyped]

    client, name = milvus.client, info.collection
    if client.has_collection(name, timeout=ANSWER_SECONDS):
        if not _dimensions_of(milvus, name):
            raise MilvusError(
                f"{milvus.where} has a collection '{name}' that was not created by Stepladder. It is not replaced: "
                "choose another name (collection)"
            )
        client.drop_collection(name, timeout=ANSWER_SECONDS)
    parameters = {"M": _M, "efConstruction": _EF_CONSTRUCTION} if info.index == "HNSW" else {}
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(POSITION, DataType.INT64, is_primary=True)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=info.dimensions)
    index = client.prepare_index_params()
    index.add_index(VECTOR, index_type=info.index, metric_type="IP", params=parameters)
    client.create_collection(name, schema=schema, index_params=index, timeout=WORK_SECONDS)


def _dimensions_of(milvus: Milvus, name: str) -> int | None:
    """The vector dimensions of a collection; None if it is not Stepladder's."""
    fields = {each["name"]: each for each in milvus.call("describe_collection", name)["fields"]}
    return int(fields[VECTOR]["params"]["dim"]) if fields.keys() == {POSITION, VECTOR} else None


def _count_of(milvus: Milvus, name: str) -> int:
    """Load a collection, and count its vectors."""
    milvus.call("load_collection", name, seconds=WORK_SECONDS)
    # Not the collection's statistics, which count a replaced vector twice.
    found = milvus.call("query", name, filter="", output_fields=["count(*)"], consistency_level="Strong")
    return int(found[0]["count(*)"])


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
        limit, more = format_bytes(memory), "raise it (--memory), "
        problem = f"needs about {format_bytes(needed)} for {count:,} vectors, and the memory limit is {limit}"
    else:
        return
    raise StepladderError(
        f"Milvus without a server {problem}: {more}give the address of a server (uri), or use the kind hnsw or ivfpq"
    )


def _compact(info: _Collection, folder: Path) -> None:
    """Open and close milvus-lite until nothing is left to merge: the files of a finished index must not change."""
    before, now = None, _sizes(folder / EMBEDDED)
    while before != now:
        with closing(info.connect(folder)) as milvus:
            milvus.call("load_collection", info.collection, seconds=WORK_SECONDS)
        before, now = now, _sizes(folder / EMBEDDED)


def _sizes(folder: Path) -> dict[Path, int]:
    return {each: each.stat().st_size for each in folder.rglob("*") if each.is_file()}


MILVUS = IndexKind(MilvusConfig, build_milvus, open_milvus, dense=True, resumable=True)
