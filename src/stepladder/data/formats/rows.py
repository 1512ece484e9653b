"""Read the rows of a question file, one at a time, and the fields that all formats have.

In: a list of JSON objects (`.json`), one JSON object per line (`.jsonl`), or a table with a header line (`.csv`,
`.tsv`), plain or gzipped. Out: the rows, each with its number. A JSON list is parsed incrementally: the largest
question sets are lists of half a gigabyte.
"""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.jsonl import Line, preview, read_objects, text_lines
from stepladder.core.unicode import without_surrogates


class QuestionFileError(StepladderError):
    """A question file that cannot be read."""


#: The columns that a table needs.
COLUMNS = "a table needs a header line with the columns question and answer (and optionally id)"
#: Separators that other programs use, and their names in error messages.
_SEPARATORS = {";": "';'", "\t": "tabs", ",": "commas", "|": "'|'"}

_CHUNK = 1 << 20
#: Most characters of one object in a list. If the text is longer, it is not valid JSON.
_MAX_OBJECT = 64 << 20
_BETWEEN = re.compile(r"[\s,]*")


def file_type(path: Path) -> str:
    """The type of a file according to its name, such as `.jsonl`; empty if it cannot be read."""
    return next((suffix for suffix in _READERS if path.name.lower().endswith((suffix, f"{suffix}.gz"))), "")


def rows(path: Path) -> Iterator[Line]:
    """The rows of a file; at least one."""
    suffix = file_type(path)
    if not suffix:
        raise QuestionFileError(
            f"{path}: unsupported file type; questions are read from {', '.join(_READERS)} files, plain or with .gz"
        )
    line = None
    for line in _READERS[suffix](path):
        yield line
    if line is None:
        raise QuestionFileError(f"{path}: the file is empty; expected questions")


def read_question(line: Line) -> str:
    """The text of a question, which must not be blank."""
    text = line.text("question").strip()
    if not text:
        raise line.wrong("'question' is blank")
    return text


def read_kind(data: Mapping[str, Any]) -> str:
    """The kind of question according to its annotation; empty if it has none."""
    kind = data.get("type")
    return kind if isinstance(kind, str) else ""


def read_answers(line: Line, key: str) -> tuple[str, ...]:
    """The accepted answers of a question, a string or a list of strings; at least one."""
    value, expected = line.data.get(key), "a non-empty string or a list of them"
    answers = clean_answers(*line.checked(key, [value] if isinstance(value, str) else value, list[str], expected))
    if not answers:
        raise line.wrong(f"{key!r} should be {expected}, found {preview(value)}")
    return answers


def clean_answers(*answers: Any) -> tuple[str, ...]:
    """Accepted answers, stripped, without blanks and duplicates."""
    texts = (str(answer).strip() for answer in answers if answer is not None)
    return tuple(dict.fromkeys(text for text in texts if text))


def _table(path: Path, delimiter: str) -> Iterator[Line]:
    reader = csv.DictReader(text_lines(path, QuestionFileError), delimiter=delimiter, strict=True)
    try:
        columns = reader.fieldnames or ()
        if len(columns) == 1 and (found := [name for mark, name in _SEPARATORS.items() if mark in columns[0]]):
            raise QuestionFileError(
                f"{path}: {COLUMNS}; found one column, {preview(columns[0])}. Is it separated by {found[0]}? Save it "
                "with commas as .csv, or with tabs as .tsv"
            )
        for row in reader:
            line = Line(path, reader.line_num, row, QuestionFileError)
            if None in row or None in row.values():
                raise line.wrong(f"expected {len(columns)} fields, as in the header; found others")
            yield line
    except csv.Error as error:
        raise QuestionFileError(f"{path}:{reader.line_num}: not a table: {error}") from error


def _json_list(path: Path) -> Iterator[Line]:
    """The objects of one JSON list."""
    decoder, text, number, started, failure = json.JSONDecoder(), "", 0, False, "it is empty"
    for chunk in _chunks(path):
        text += chunk
        if not started:
            text = text.lstrip()
            if text and not text.startswith("["):
                raise QuestionFileError(f"{path}: expected a JSON list of questions, found {preview(text[:40])}")
            started, text = bool(text), text[1:]
        position, incomplete = 0, False
        while not incomplete:
            start = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]  # it may match nothing
            if text.startswith("]", start):
                return
            try:
                data, position = decoder.raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                failure, incomplete = str(error), True
                continue
            number += 1
            if not isinstance(data, dict):
                raise QuestionFileError(f"{path}:{number}: expected a JSON object, found {preview(data)}")
            yield Line(path, number, without_surrogates(data), QuestionFileError)
        text = text[position:]
        if len(text) > _MAX_OBJECT:
            break
    raise QuestionFileError(
        f"{path}: the JSON list is incomplete after item {number}: {failure}; download the file again"
    )


def _chunks(path: Path) -> Iterator[str]:
    try:
        open_file: Any = gzip.open if path.suffix == ".gz" else Path.open
        with open_file(path, "rt", encoding="utf-8-sig") as file:
            yield from iter(lambda: file.read(_CHUNK), "")
    except UnicodeDecodeError as error:
        raise QuestionFileError(f"{path}: not UTF-8: {error.reason}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise QuestionFileError(f"{path}: cannot be read: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": lambda path: read_objects(path, QuestionFileError),
    ".json": _json_list,
    ".csv": lambda path: _table(path, ","),
    ".tsv": lambda path: _table(path, "\t"),
}
