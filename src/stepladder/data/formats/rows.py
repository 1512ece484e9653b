"""Read the rows of a question file, one at a time, and the fields that all formats have.

In: a list of JSON objects (`.json`), one JSON object per line (`.jsonl`), or a table with a header line (`.csv`,
`.tsv`), plain or gzipped. Out: the rows, each with its number. A JSON list is parsed incrementally: the largest
question sets are lists of half a gigabyte.
"""

import codecs
import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.jsonl import Line, parse_object, preview, raw_lines, without_surrogates


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


def is_table(path: Path) -> bool:
    """Whether a file is read as a table."""
    return file_type(path) in (".csv", ".tsv")


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


def read_id(line: Line, *keys: str) -> str:
    """The id of a row, from the first of these keys that it has."""
    value = next((line.data[key] for key in keys if line.data.get(key) is not None), None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise line.wrong(f"{keys[0]!r} should be a non-empty string, found {preview(value)}")
    return value


def read_question(line: Line) -> str:
    """The text of a question, which must not be blank."""
    text = line.text("question").strip()
    if not text:
        raise line.wrong("'question' is blank")
    return text


def string_list(value: object) -> list[str] | None:
    """The value if it is a list of strings, else None."""
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def clean_answers(*answers: Any) -> tuple[str, ...]:
    """Accepted answers, stripped, without blanks and duplicates."""
    texts = (str(answer).strip() for answer in answers if answer is not None)
    return tuple(dict.fromkeys(text for text in texts if text))


def _json_lines(path: Path) -> Iterator[Line]:
    for number, raw in raw_lines(path, QuestionFileError):
        if raw.strip():
            yield Line(path, number, parse_object(path, number, raw, QuestionFileError), QuestionFileError)


def _table(path: Path, delimiter: str) -> Iterator[Line]:
    reader = csv.DictReader(_text_lines(path), delimiter=delimiter, strict=True)
    try:
        _check_separator(path, reader.fieldnames or ())
        for row in reader:
            line = Line(path, reader.line_num, row, QuestionFileError)
            if None in row or None in row.values():
                raise line.wrong(f"expected {len(reader.fieldnames or ())} fields, as in the header; found others")
            yield line
    except csv.Error as error:
        raise QuestionFileError(f"{path}:{reader.line_num}: not a table: {error}") from error


def _check_separator(path: Path, columns: Sequence[str]) -> None:
    """Reject a table whose only column contains another separator."""
    found = [name for separator, name in _SEPARATORS.items() if len(columns) == 1 and separator in columns[0]]
    if found:
        raise QuestionFileError(
            f"{path}: {COLUMNS}; found one column, {preview(columns[0])}. Is it separated by {found[0]}? Save it with "
            "commas as .csv, or with tabs as .tsv"
        )


def _text_lines(path: Path) -> Iterator[str]:
    for number, raw in raw_lines(path, QuestionFileError):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise QuestionFileError(f"{path}:{number}: not UTF-8: byte 0x{raw[error.start]:02x}") from error


def _json_list(path: Path) -> Iterator[Line]:
    """The objects of one JSON list."""
    decoder, text, number, started, failure = json.JSONDecoder(), "", 0, False, "it is empty"
    for chunk in _chunks(path):
        text += chunk
        if not started:
            text = text.lstrip("\ufeff \t\r\n")
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
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while raw := file.read(_CHUNK):
                yield decode(raw)
    except UnicodeDecodeError as error:
        raise QuestionFileError(f"{path}: not UTF-8: {error.reason}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise QuestionFileError(f"{path}: cannot be read: {error}") from error


_READERS: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": _json_lines,
    ".json": _json_list,
    ".csv": lambda path: _table(path, ","),
    ".tsv": lambda path: _table(path, "\t"),
}
