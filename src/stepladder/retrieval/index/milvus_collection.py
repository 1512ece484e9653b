"""The Milvus collection of an index: its schema, and the upload of vectors.

In: the collection's location, and vectors. Out: a collection of vectors with their positions as primary keys.
Vectors are uploaded in groups, with a checkpoint after each. An interrupted upload resumes from the last checkpoint;
vectors that were already sent after it are replaced.
"""

import json
import shutil
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.io.files import PartialFolder, atomic_file
from stepladder.core.io.retries import retry_wait
from stepladder.retrieval.base import ProgressCallback
from stepladder.retrieval.index.milvus_server import ANSWER_SECONDS, WORK_SECONDS, Milvus, MilvusError
from stepladder.retrieval.index.vectors import StoredVectors

#: The database of milvus-lite in the index folder.
EMBEDDED = "milvus.db"
#: The fields of a collection. The first one identifies Stepladder's collections.
POSITION, VECTOR = "stepladder_position", "vector"

_CHECKPOINT = "milvus-sent.json"
#: Vectors per request, and per checkpoint.
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


class VectorUpload:
    """Uploads vectors to their collection."""

    def __init__(
        self, vectors: StoredVectors, info: CollectionInfo, to: PartialFolder, progress: ProgressCallback
    ) -> None:
        self._vectors, self._info, self._to, self._progress = vectors, info, to, progress
        self._checkpoint = to.scratch / _CHECKPOINT

    def run(self) -> None:
        """Upload the missing vectors; raise if the collection is not complete at the end."""
        if self._info.uri is None and not self._checkpoint.exists():
            # Remove a partially created collection.
            shutil.rmtree(self._to.folder / EMBEDDED, ignore_errors=True)
        name, total = self._info.collection, len(self._vectors)
        with closing(self._info.connect(self._to.folder)) as milvus:
            for start in range(self._start(milvus), total, _GROUP):
                self._progress("Sending vectors to Milvus", start, total)
                end = min(start + _GROUP, total)
                for first in range(start, end, _BATCH):
                    self._send(milvus, first, min(first + _BATCH, end))
                if self._info.uri is None:  # a server persists what it accepted, milvus-lite what is flushed
                    with milvus.wrap_errors():
                        milvus.client.flush(name, timeout=WORK_SECONDS)
                self._write_checkpoint(end)
            self._progress("Sending vectors to Milvus", total, total)
            with milvus.wrap_errors():
                milvus.client.flush(name, timeout=WORK_SECONDS)
                milvus.client.load_collection(name, timeout=WORK_SECONDS)
            found = count_of(milvus, name)
        if found != total:
            self._checkpoint.unlink()
            raise MilvusError(
                f"{milvus.where}: '{name}' has {found:,} vectors after {total:,} were sent. Build again: all will be "
                "sent again"
            )

    def _start(self, milvus: Milvus) -> int:
        """The number of vectors from an earlier attempt; creates the collection if it does not exist."""
        name, client = self._info.collection, milvus.client
        with milvus.wrap_errors():
            exists = client.has_collection(name, timeout=ANSWER_SECONDS)
            if exists and self._checkpoint.exists():
                sent = int(json.loads(self._checkpoint.read_text(encoding="utf-8"))["sent"])
                client.load_collection(name, timeout=WORK_SECONDS)
                return sent if count_of(milvus, name) >= sent else 0
            if exists:
                if not dimensions_of(client, name):
                    raise MilvusError(
                        f"{milvus.where} has a collection '{name}' that was not created by Stepladder. It is not "
                        "replaced: choose another name (collection)"
                    )
                client.drop_collection(name, timeout=ANSWER_SECONDS)
            _create(client, self._info)
        self._write_checkpoint(0)
        return 0

    def _send(self, milvus: Milvus, start: int, end: int) -> None:
        rows = [{POSITION: position, VECTOR: self._vectors[position]} for position in range(start, end)]
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with milvus.wrap_errors():
                    milvus.client.upsert(self._info.collection, rows, timeout=ANSWER_SECONDS)
                return
            except MilvusError as error:
                if attempt == _ATTEMPTS:
                    raise MilvusError(
                        f"{error} ({_ATTEMPTS} attempts; run the same command again to resume)"
                    ) from error
                time.sleep(retry_wait(attempt, {}, _BACKOFF) or 0.0)

    def _write_checkpoint(self, sent: int) -> None:
        with atomic_file(self._checkpoint) as file:
            json.dump({"sent": sent}, file)


def _create(client: Any, info: CollectionInfo) -> None:
    from pymilvus import DataType  # type: ignore[import-untyped]

    parameters = {"M": _M, "efConstruction": _EF_CONSTRUCTION} if info.index == "HNSW" else {}
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(POSITION, DataType.INT64, is_primary=True)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=info.dimensions)
    index = client.prepare_index_params()
    index.add_index(VECTOR, index_type=info.index, metric_type="IP", params=parameters)
    client.create_collection(info.collection, schema=schema, index_params=index, timeout=WORK_SECONDS)


def dimensions_of(client: Any, name: str) -> int | None:
    """The vector dimensions of a collection; None if it is not Stepladder's."""
    fields = {each["name"]: each for each in client.describe_collection(name, timeout=ANSWER_SECONDS)["fields"]}
    return int(fields[VECTOR]["params"]["dim"]) if fields.keys() == {POSITION, VECTOR} else None


def count_of(milvus: Milvus, name: str) -> int:
    """The number of vectors in a loaded collection."""
    # Not the collection's statistics, which count a replaced vector twice.
    with milvus.wrap_errors():
        found = milvus.client.query(
            name, filter="", output_fields=["count(*)"], consistency_level="Strong", timeout=ANSWER_SECONDS
        )
    return int(found[0]["count(*)"])
