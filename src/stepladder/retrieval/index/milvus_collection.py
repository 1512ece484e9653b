"""The Milvus collection of an index: its schema, and the upload of vectors.

In: the collection's location, and vectors. Out: a collection of vectors with their positions as primary keys.
Vectors are uploaded in groups, in order. An interrupted upload resumes with the first group that is not complete;
vectors that were already sent are replaced.
"""

import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.io.files import PartialFolder
from stepladder.core.io.retries import retry_wait
from stepladder.retrieval.base import ProgressCallback
from stepladder.retrieval.index.milvus_server import ANSWER_SECONDS, WORK_SECONDS, Milvus, MilvusError
from stepladder.retrieval.index.vectors import StoredVectors

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


@dataclass(frozen=True, slots=True)
class CollectionInfo:
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


def upload_vectors(vectors: StoredVectors, info: CollectionInfo, to: PartialFolder, progress: ProgressCallback) -> None:
    """Upload the vectors that an earlier attempt has not; raise if the collection is not complete at the end."""
    created, total = to.scratch / _CREATED, len(vectors)
    if info.uri is None and not created.exists():
        shutil.rmtree(to.folder / EMBEDDED, ignore_errors=True)  # a partially created collection
    with closing(info.connect(to.folder)) as milvus:
        start = 0
        if created.exists() and milvus.call("has_collection", info.collection):
            start = count_of(milvus, info.collection) // _GROUP * _GROUP
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
        found = count_of(milvus, info.collection)
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


def _create(milvus: Milvus, info: CollectionInfo) -> None:
    """Create the collection; an earlier one of Stepladder with the same name is replaced."""
    from pymilvus import DataType  # type: ignore[import-untyped]

    client, name = milvus.client, info.collection
    if client.has_collection(name, timeout=ANSWER_SECONDS):
        if not dimensions_of(milvus, name):
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


def dimensions_of(milvus: Milvus, name: str) -> int | None:
    """The vector dimensions of a collection; None if it is not Stepladder's."""
    fields = {each["name"]: each for each in milvus.call("describe_collection", name)["fields"]}
    return int(fields[VECTOR]["params"]["dim"]) if fields.keys() == {POSITION, VECTOR} else None


def count_of(milvus: Milvus, name: str) -> int:
    """Load a collection, and count its vectors."""
    milvus.call("load_collection", name, seconds=WORK_SECONDS)
    # Not the collection's statistics, which count a replaced vector twice.
    found = milvus.call("query", name, filter="", output_fields=["count(*)"], consistency_level="Strong")
    return int(found[0]["count(*)"])
