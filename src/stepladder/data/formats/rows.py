"""Read the files that question sets come in, one object at a time.

In: a file that is a list of JSON objects (`.json`), has one a line (`.jsonl`), or is a table whose first line names the
columns (`.csv`, `.tsv`); each may be gzipped. Out: its objects, each with the line, item or row it is. A list is read
piece by piece: the largest question sets are lists of half a gigabyte.
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
from stepladder.core.io.jsonl import Line, parse_object, preview, raw_lines


class QuestionFileError(StepladderError):
    """A file of questions that cannot be read."""


#: What a table must have.
COLUMNS = "a table of your own needs the columns question and answer, named in its first line (an id is welcome)"
#: What other programs put between fields, and how an error calls it.
_SEPARATORS = {";": "';'", "\t": "tabs", ",": "commas", "|": "'|'"}

_CHUNK = 1 << 20
#: An object of a list that goes on for longer than this is not one.
_LONGEST = 64 << 20
_BETWEEN = re.compile(r"[\s,]*")
_SURROGATE = re.compile("[\ud800-\udfff]")


def kind_of(path: Path) -> str:
    """What a file is read as, by the end of its name; empty for others."""
    return next((kind for kind in _READERS if path.name.lower().endswith((kind, f"{kind}.gz"))), "")


def is_table(path: Path) -> bool:
    """Whether a file is read as a table."""
    return kind_of(path) in (".csv", ".tsv")


def rows(path: Path) -> Iterator[Line]:
    """The objects of a file; at least one."""
    kind = kind_of(path)
    if not kind:
        raise QuestionFileError(
            f"{path}: questions are read from {', '.join(_READERS)} files (each also with .gz), and this is none"
        )
    line = None
    for line in _READERS[kind](path):
        yield line
    if line is None:
        raise QuestionFileError(f"{path}: the file is empty; expected questions")


def _lines(path: Path) -> Iterator[Line]:
    for number, raw in raw_lines(path, QuestionFileError):
        if raw.strip():
            yield Line(path, number, parse_object(path, number, raw, QuestionFileError), QuestionFileError)


def _table(path: Path, delimiter: str) -> Iterator[Line]:
    reader = csv.DictReader(_text(path), delimiter=delimiter, strict=True)
    try:
        _expect_columns(path, reader.fieldnames or ())
        for row in reader:
            line = Line(path, reader.line_num, row, QuestionFileError)
            if None in row or None in row.values():
                raise line.wrong(f"expected {len(reader.fieldnames or ())} fields, as the first line has; found others")
            yield line
    except csv.Error as error:
        raise QuestionFileError(f"{path}:{reader.line_num}: not a table: {error}") from error


def _expect_columns(path: Path, names: Sequence[str]) -> None:
    """Refuse a table whose only column has the names of several in its name."""
    found = [called for separator, called in _SEPARATORS.items() if len(names) == 1 and separator in names[0]]
    if found:
        raise QuestionFileError(
            f"{path}: {COLUMNS}; found one column, {preview(names[0])}. Is it separated by {found[0]}? Save it with "
            "commas as .csv, or with tabs as .tsv"
        )


def _text(path: Path) -> Iterator[str]:
    for number, raw in raw_lines(path, QuestionFileError):
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise QuestionFileError(f"{path}:{number}: not UTF-8: byte 0x{raw[error.start]:02x}") from error


def _items(path: Path) -> Iterator[Line]:
    """The objects of one JSON list."""
    decoder, text, number, begun, failure = json.JSONDecoder(), "", 0, False, "it is empty"
    for chunk in _chunks(path):
        text += chunk
        if not begun:
            text = text.lstrip("\ufeff \t\r\n")
            if text and not text.startswith("["):
                raise QuestionFileError(f"{path}: expected a JSON list of questions, found {preview(text[:40])}")
            begun, text = bool(text), text[1:]
        place, ended = 0, False
        while not ended:
            start = _BETWEEN.match(text, place).end()  # type: ignore[union-attr]  # it may match nothing
            if text.startswith("]", start):
                return
            try:
                data, place = decoder.raw_decode(text, start)
            except (ValueError, RecursionError) as error:
                failure, ended = str(error), True
                continue
            number += 1
            if not isinstance(data, dict):
                raise QuestionFileError(f"{path}:{number}: expected a JSON object, found {preview(data)}")
            yield Line(path, number, _clean(data), QuestionFileError)
        text = text[place:]
        if len(text) > _LONGEST:
            break
    raise QuestionFileError(f"{path}: not a whole JSON list: after item {number} {failure}; get the file again")


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


def _clean(value: Any) -> Any:
    """Without lone surrogates, which JSON escapes can smuggle in."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {key: _clean(each) for key, each in value.items()}
    return value


_READERS: dict[str, Callable[[Path], Iterator[Line]]] = {
    ".jsonl": _lines,
    ".json": _items,
    ".csv": lambda path: _table(path, ","),
    ".tsv": lambda path: _table(path, "\t"),
}
