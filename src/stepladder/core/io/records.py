"""Trace records as exact JSON: one record per line, each line with its kind and schema version.

In: records of trace.py, or the path of such a file. Out: a file, written atomically; or the records.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import PydanticSerializationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.jsonl import text_lines
from stepladder.core.trace import Pair, Passage, Question, TraceError, Trajectory, Tree

SCHEMA_VERSION = 1

AnyRecord = Question | Passage | Trajectory | Tree | Pair
Record = TypeVar("Record", Question, Passage, Trajectory, Tree, Pair)

#: Of these classes, and of those nested in them.
_STRICT = ConfigDict(extra="forbid", ser_json_inf_nan="constants")
_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {
    cls: TypeAdapter(with_config(_STRICT)(cls)) for cls in get_args(AnyRecord)
}


def _kind(cls: type[Any]) -> str:
    return cls.__name__.lower()


def _head(cls: type[Any]) -> str:
    return f'{{"record":"{_kind(cls)}","version":{SCHEMA_VERSION},'


def dumps(record: AnyRecord) -> str:
    """One line of JSON that starts with kind and schema version. `loads` turns it back into an equal record."""
    cls = type(record)
    try:
        return _head(cls) + _ADAPTERS[cls].dump_json(record).decode()[1:]
    except PydanticSerializationError as error:
        raise TraceError(f"a {_kind(cls)} cannot be written as JSON: {error}") from error


def loads(line: str, cls: type[Record]) -> Record:
    """The record in a line written by `dumps`. Other kinds, other versions and unknown fields are errors."""
    head = _head(cls)
    body = "{" + line[len(head) :] if line.startswith(head) else _body(line, cls)
    try:
        record: Record = _ADAPTERS[cls].validate_json(body, strict=True)
        return record
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "record"
        raise TraceError(f"bad {_kind(cls)}: {where}: {first['msg']}") from error


def _body(line: str, cls: type[Any]) -> str:
    """The record without kind and version, for lines with another key order than that of `dumps`."""
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TraceError(f"not JSON: {error}") from error
    if not isinstance(data, dict) or "record" not in data or "version" not in data:
        raise TraceError(f"not a Stepladder {_kind(cls)}: 'record' or 'version' is missing")
    version, kind = data.pop("version"), data.pop("record")
    data.pop("upper_bound", None)  # a mark of `ask --json`, not part of the record
    if version != SCHEMA_VERSION:
        is_newer = isinstance(version, int) and version > SCHEMA_VERSION
        raise TraceError(
            f"schema version {version!r} is unknown: this Stepladder reads version {SCHEMA_VERSION}. "
            + ("Update Stepladder to read the file." if is_newer else "Write the file again with it.")
        )
    if kind != _kind(cls):
        raise TraceError(f"found a {kind!r} record where a {_kind(cls)!r} was expected")
    return json.dumps(data)


class RecordError(StepladderError):
    """A record file that cannot be read."""


def write_records(path: Path, records: Iterable[AnyRecord]) -> None:
    """Write one record per line."""
    with atomic_file(path) as file:
        file.writelines(dumps(record) + "\n" for record in records)


def read_records(path: Path, cls: type[Record]) -> Iterator[Record]:
    """Yield the records of a file. Errors name the file and the line."""
    for number, line in enumerate(text_lines(path, RecordError), start=1):
        if line.strip():
            try:
                yield loads(line, cls)
            except TraceError as error:
                raise RecordError(f"{path}:{number}: {error}") from error
