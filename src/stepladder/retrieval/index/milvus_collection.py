"""The collection of an index in Milvus: what it looks like, and how vectors get into it.

In: where it is, and vectors. Out: a collection that has for each of them its position, as the primary key, and itself.
Vectors are sent in groups, with a note after each. An attempt that was cut off goes on behind the last note; what was
sent in between is sent again, and replaces itself.
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

#: What milvus-lite makes in the index folder.
EMBEDDED = "milvus.db"
#: The fields of a collection. By the name of the first one a collection is known to be ours.
POSITION, VECTOR = "stepladder_position", "vector"

_NOTE = "milvus-sent.json"
#: Vectors a request, and how many are sent between two notes.
_BATCH, _GROUP = 1024, 16_384
#: How often a request is tried, and seconds before the second time; each further wait is twice as long.
_TRIES, _BACKOFF = 6, 1.0
#: HNSW: neighbours a vector has, and how many are looked at when it is put in. milvus-lite has values of its own.
_NEIGHBOURS, _BUILD_WIDTH = 32, 200


@dataclass(frozen=True, slots=True)
class CollectionInfo:
    """Where the vectors are."""

    #: Of a server; None is milvus-lite in the index folder.
    uri: str | None
    collection: str
    #: FLAT, HNSW or AUTOINDEX.
    index: str
    #: Numbers a vector.
    dimensions: int

    def connect(self, folder: Path) -> Milvus:
        """A connection to it, for an index in the folder."""
        return Milvus(self.uri, folder / EMBEDDED)


class VectorUpload:
    """Puts vectors into their collection."""

    def __init__(self, vectors: StoredVectors, place: CollectionInfo, to: PartialFolder, progress: ProgressCallback) -> None:
        self._vectors, self._place, self._to, self._watch = vectors, place, to, progress
        self._note = to.scratch / _NOTE

    def run(self) -> None:
        """Send what is not there yet; raise where not all of them are there in the end."""
        if self._place.uri is None and not self._note.exists():
            # A collection that was cut off while it was made would be in the way.
            shutil.rmtree(self._to.folder / EMBEDDED, ignore_errors=True)
        name, total = self._place.collection, len(self._vectors)
        with closing(self._place.connect(self._to.folder)) as milvus:
            for start in range(self._begin(milvus), total, _GROUP):
                self._watch("VectorUpload vectors to Milvus", start, total)
                end = min(start + _GROUP, total)
                for first in range(start, end, _BATCH):
                    self._send(milvus, first, min(first + _BATCH, end))
                if self._place.uri is None:  # a server keeps what it has taken, milvus-lite what is flushed
                    with milvus.explained():
                        milvus.client.flush(name, timeout=WORK_SECONDS)
                self._write_note(end)
            self._watch("VectorUpload vectors to Milvus", total, total)
            with milvus.explained():
                milvus.client.flush(name, timeout=WORK_SECONDS)
                milvus.client.load_collection(name, timeout=WORK_SECONDS)
            found = count_of(milvus, name)
        if found != total:
            self._note.unlink()
            raise MilvusError(
                f"{milvus.where}: '{name}' has {found:,} vectors after {total:,} were sent. Build again: all are sent "
                "once more"
            )

    def _begin(self, milvus: Milvus) -> int:
        """How many vectors are there from an earlier attempt; makes the collection where there is none."""
        name, client = self._place.collection, milvus.client
        with milvus.explained():
            there = client.has_collection(name, timeout=ANSWER_SECONDS)
            if there and self._note.exists():
                sent = int(json.loads(self._note.read_text(encoding="utf-8"))["sent"])
                client.load_collection(name, timeout=WORK_SECONDS)
                return sent if count_of(milvus, name) >= sent else 0
            if there:
                if not dimensions_of(client, name):
                    raise MilvusError(
                        f"{milvus.where} has a collection '{name}' that is not of Stepladder. It stays as it is: "
                        "choose another name (collection)"
                    )
                client.drop_collection(name, timeout=ANSWER_SECONDS)
            _create(client, self._place)
        self._write_note(0)
        return 0

    def _send(self, milvus: Milvus, start: int, end: int) -> None:
        rows = [{POSITION: position, VECTOR: self._vectors[position]} for position in range(start, end)]
        for tries in range(1, _TRIES + 1):
            try:
                with milvus.explained():
                    milvus.client.upsert(self._place.collection, rows, timeout=ANSWER_SECONDS)
                return
            except MilvusError as error:
                if tries == _TRIES:
                    raise MilvusError(
                        f"{error} (tried {_TRIES} times; the same command goes on from here when it is well again)"
                    ) from error
                time.sleep(retry_wait(tries, {}, _BACKOFF) or 0.0)

    def _write_note(self, sent: int) -> None:
        with atomic_file(self._note) as file:
            json.dump({"sent": sent}, file)


def _create(client: Any, place: CollectionInfo) -> None:
    from pymilvus import DataType  # type: ignore[import-untyped]

    parameters = {"M": _NEIGHBOURS, "efConstruction": _BUILD_WIDTH} if place.index == "HNSW" else {}
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field(POSITION, DataType.INT64, is_primary=True)
    schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=place.dimensions)
    index = client.prepare_index_params()
    index.add_index(VECTOR, index_type=place.index, metric_type="IP", params=parameters)
    client.create_collection(place.collection, schema=schema, index_params=index, timeout=WORK_SECONDS)


def dimensions_of(client: Any, name: str) -> int | None:
    """Numbers a vector of a collection; None where the collection is not one of ours."""
    fields = {each["name"]: each for each in client.describe_collection(name, timeout=ANSWER_SECONDS)["fields"]}
    return int(fields[VECTOR]["params"]["dim"]) if fields.keys() == {POSITION, VECTOR} else None


def count_of(milvus: Milvus, name: str) -> int:
    """How many vectors a collection has; it must be loaded."""
    # Not the collection's statistics, in which a replaced vector counts twice.
    with milvus.explained():
        found = milvus.client.query(
            name, filter="", output_fields=["count(*)"], consistency_level="Strong", timeout=ANSWER_SECONDS
        )
    return int(found[0]["count(*)"])
