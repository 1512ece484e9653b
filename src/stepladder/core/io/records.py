"""Files of traces: one record a line, plain JSON, each line with its kind and schema version.

In: records of trace.py, or the path of such a file. Out: the file, written whole or not at all; or the records.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.trace import AnyRecord, Record, TraceError, dumps, loads


class RecordError(StepladderError):
    """A file of records that cannot be read."""


def write_records(path: Path, records: Iterable[AnyRecord]) -> None:
    """Write one record a line."""
    with atomic_file(path) as file:
        file.writelines(dumps(record) + "\n" for record in records)


def read_records(path: Path, cls: type[Record]) -> Iterator[Record]:
    """The records of a file, one at a time; an error names the file and the line."""
    try:
        # Only "\n" ends a line: texts may hold the other characters that Python takes for line ends.
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    yield loads(line, cls)
                except TraceError as error:
                    raise RecordError(f"{path}:{number}: {error}") from error
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: not UTF-8: {error}") from error
