"""Tables of passages: one passage per line or row, in the common formats.

In: a file of a type in `TABLES`. Out: its passages, each with its line or row. Other keys and columns are ignored; the
id may also be named `_id` (BEIR) or `docid` (Tevatron, MIRACL).

    {"id": "7", "contents": "\\"Title\\"\\nText of the passage ..."}     FlashRAG, Search-R1
    {"id": "7", "title": "Title", "text": "Text of the passage ..."}   the title is optional
"""

import csv
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.jsonl import Line, Watch, ignore_position, read_objects, text_lines
from stepladder.core.trace import Passage

_IDS = ("id", "_id", "docid")
_TEXTS = ("text", "contents")


class CorpusError(StepladderError):
    """A corpus that cannot be read."""


def read_table(file: Path, kind: str, watch: Watch = ignore_position) -> Iterator[tuple[int, Passage]]:
    """The passages of a table, each with its line or row."""
    for line in TABLES[kind](file, watch):
        yield line.number, read_passage(line)


def _objects(path: Path, watch: Watch) -> Iterator[Line]:
    return read_objects(path, CorpusError, watch)


def _tsv_rows(path: Path, watch: Watch) -> Iterator[Line]:
    return separated_rows(path, watch, "\t", "tab-separated values")


def separated_rows(path: Path, watch: Watch, delimiter: str, name: str) -> Iterator[Line]:
    """The rows of a table in a text file with a header."""
    reader = csv.reader(text_lines(path, CorpusError, watch), delimiter=delimiter, strict=True)
    names: list[str] = []
    number = 1
    try:
        for row in reader:
            line = Line(path, number, dict(zip(names, row)), CorpusError)
            number = reader.line_num + 1  # a row may span several lines
            if not names:
                names = row
                _check_columns(f"{path}:{line.number}", names)
            elif len(row) == len(names):
                yield line
            elif row:
                raise line.wrong(f"expected {len(names)} fields ({', '.join(names)}), found {len(row)}")
    except csv.Error as error:
        raise CorpusError(
            f"{path}:{number}: not {name}: {error}. Fields with quotes need csv quoting: "
            'in quotes, with inner quotes doubled, "like ""this"""'
        ) from error


def _parquet_rows(path: Path, watch: Watch) -> Iterator[Line]:
    # Imported here: it is slow to import, and nothing else needs it.
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = _columns(path, file.schema_arrow)
            size, rows = path.stat().st_size, max(file.metadata.num_rows, 1)
            watch(lambda: size * number // rows)
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

    _check_columns(str(path), schema.names)
    names = [name for name in schema.names if name in (*_IDS, *_TEXTS, "title")]
    for name in names:
        kind = schema.field(name).type
        inner = kind.value_type if types.is_dictionary(kind) else kind
        is_text = types.is_string(inner) or types.is_large_string(inner) or types.is_string_view(inner)
        if not is_text and not types.is_null(inner) and not (name in _IDS and types.is_integer(inner)):
            raise CorpusError(f"{path}: column '{name}' should contain strings, found {kind}")
    return names


def read_passage(line: Line) -> Passage:
    """The passage of a line or row."""
    _check_columns(f"{line.path}:{line.number}", line.data)
    found = line.id(*_IDS)
    if "contents" in line.data:
        title, newline, text = _text(line, "contents").partition("\n")
        return Passage(found, _unquoted(title.strip()), text.strip()) if newline else Passage(found, "", title.strip())
    return Passage(found, _text(line, "title").strip(), _text(line, "text").strip())


def _text(line: Line, key: str) -> str:
    return "" if line.data.get(key) is None else line.text(key)


def _unquoted(title: str) -> str:
    quoted = len(title) >= 2 and title.startswith('"') and title.endswith('"')
    return title[1:-1].strip() if quoted else title


def are_passages(names: Collection[str]) -> bool:
    """Whether columns of these names are a table of passages."""
    return not _missing(names)


def _missing(names: Collection[str]) -> list[tuple[str, ...]]:
    return [needed for needed in (_IDS, _TEXTS) if not any(name in names for name in needed)]


def _check_columns(where: str, names: Collection[str]) -> None:
    """Raise if there is no id or no text, with the columns that were found and the nearest name."""
    missing = _missing(names)
    if not missing:
        return
    hints = []
    for needed in missing:
        near = ((name, get_close_matches(name.lower(), needed, n=1, cutoff=0.5)) for name in names)
        found = next(((name, *matches) for name, matches in near if matches), None)
        hints.append(f"rename '{found[0]}' to '{found[1]}'" if found else f"there is no '{needed[0]}'")
    raise CorpusError(
        f"{where}: expected the columns 'id' (or '_id', 'docid') and 'text' (or 'contents'), and 'title' if there is "
        f"one; found {', '.join(repr(name)[:50] for name in names) or 'none'}: {', '.join(hints)}"
    )


#: The reader of each table type, by file suffix.
TABLES: dict[str, Callable[[Path, Watch], Iterator[Line]]] = {
    ".jsonl": _objects,
    ".jsonl.gz": _objects,
    ".parquet": _parquet_rows,
    ".tsv": _tsv_rows,
    ".tsv.gz": _tsv_rows,
}
