"""Tables of passages: one passage per line or row, in the common formats.

In: a file of a type in `TABLES`. Out: its passages, each with its line or row. Other keys and columns are ignored; the
id may also be named `_id` (BEIR) or `docid` (Tevatron, MIRACL).

    {"id": "7", "contents": "\\"Title\\"\\nText of the passage ..."}     FlashRAG, Search-R1
    {"id": "7", "title": "Title", "text": "Text of the passage ..."}   the title is optional
"""

import csv
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.jsonl import Line, parse_object, preview, raw_lines
from stepladder.core.trace import Passage

_IDS = ("id", "_id", "docid")
_TEXTS = ("contents", "text")


class CorpusError(StepladderError):
    """A corpus that cannot be read."""


def read_table(file: Path, kind: str) -> Iterator[tuple[int, Passage]]:
    """The passages of a table, each with its line or row."""
    for line in TABLES[kind](file):
        yield line.number, _passage(line)


def _objects(path: Path) -> Iterator[Line]:
    for number, raw in raw_lines(path, CorpusError):
        if raw.strip():
            yield Line(path, number, parse_object(path, number, raw, CorpusError), CorpusError)


def _tsv_rows(path: Path) -> Iterator[Line]:
    reader = csv.reader(text_lines(path), delimiter="\t", strict=True)
    names: list[str] = []
    number = 1
    try:
        for row in reader:
            line = Line(path, number, dict(zip(names, row)), CorpusError)
            number = reader.line_num + 1  # a row may span several lines
            if not names:
                names = row
                if not set(names) & set(_IDS) or not set(names) & set(_TEXTS):
                    raise line.wrong(f"expected a header with 'id', 'text' and 'title'; found {preview(row)}")
            elif len(row) == len(names):
                yield line
            elif row:
                raise line.wrong(f"expected {len(names)} fields ({', '.join(names)}), found {len(row)}")
    except csv.Error as error:
        raise CorpusError(
            f"{path}:{number}: not tab-separated values: {error}. Fields with quotes need csv quoting: "
            'in quotes, with inner quotes doubled, "like ""this"""'
        ) from error


def _parquet_rows(path: Path) -> Iterator[Line]:
    # Imported here: it is slow to import, and nothing else needs it.
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = _columns(path, file.schema_arrow)
            # Part of a row group at a time, and only these columns: embedding columns are not read.
            for batch in file.iter_batches(batch_size=1024, columns=names):
                for row in zip(*(batch.column(name) for name in names)):
                    data = {name: value.as_py() for name, value in zip(names, row)}
                    number += 1
                    yield Line(path, number, data, CorpusError)
    except UnicodeDecodeError as error:
        found = f"byte 0x{error.object[error.start]:02x} at position {error.start}"
        raise CorpusError(f"{path}:{number + 1}: not UTF-8: {found} of a string") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise CorpusError(
            f"{path}: cannot be read as Parquet after row {number}: {error}; download the file again"
        ) from error


def _columns(path: Path, schema: Any) -> list[str]:
    """The names of the columns to read, with their types checked."""
    from pyarrow import types

    names = [name for name in schema.names if name in (*_IDS, *_TEXTS, "title")]
    if not set(names) & set(_TEXTS):
        raise _unknown_layout(str(path), schema.names)
    for name in names:
        kind = schema.field(name).type
        inner = kind.value_type if types.is_dictionary(kind) else kind
        is_text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
        if not is_text and not types.is_null(inner) and not (name in _IDS and types.is_integer(inner)):
            raise CorpusError(f"{path}: column '{name}' should contain strings, found {kind}")
    return names


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 text."""
    for number, raw in raw_lines(path, CorpusError):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{raw[error.start]:02x} at position {error.start}"
            raise CorpusError(f"{path}:{number}: not UTF-8: {found}; save the file as UTF-8") from error


def _passage(line: Line) -> Passage:
    key = next((name for name in _IDS if name in line.data), "id")
    found = line.data.get(key)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or not found.strip():
        raise line.wrong(f"{key!r} should be a non-empty string, found {preview(found)}")
    if "contents" in line.data:
        title, newline, text = _text(line, "contents").partition("\n")
        return Passage(found, _unquoted(title.strip()), text.strip()) if newline else Passage(found, "", title.strip())
    if "text" in line.data:
        return Passage(found, _text(line, "title").strip(), _text(line, "text").strip())
    raise _unknown_layout(f"{line.path}:{line.number}", line.data)


def _text(line: Line, key: str) -> str:
    return "" if line.data.get(key) is None else line.text(key)


def _unquoted(title: str) -> str:
    quoted = len(title) >= 2 and title.startswith('"') and title.endswith('"')
    return title[1:-1].strip() if quoted else title


def _unknown_layout(where: str, names: Iterable[str]) -> CorpusError:
    keys = ", ".join(repr(name) for name in names)
    return CorpusError(f"{where}: expected 'contents', or 'text' with or without 'title'; found the keys {keys}")


#: The reader of each table type, by file suffix.
TABLES: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": _objects,
    ".jsonl.gz": _objects,
    ".parquet": _parquet_rows,
    ".tsv": _tsv_rows,
    ".tsv.gz": _tsv_rows,
}
