"""Read third-party JSON Lines files, plain or gzipped, with errors that name file and line.

In: a path and the error class to raise. Out: the lines one at a time, each with its id. Blank lines are skipped; ids
are required and must be unique. Lone surrogates from JSON escapes, which UTF-8 cannot encode, become U+FFFD.
"""

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Line:
    """One JSON object and its position in the file."""

    path: Path
    number: int
    data: dict[str, Any]
    #: Class of errors about this line.
    error: type[StepladderError]

    def wrong(self, problem: str) -> StepladderError:
        """An error about this line."""
        return _wrong(self.error, self.path, self.number, problem)

    def text(self, key: str) -> str:
        """The string under a required key."""
        value = self.data.get(key)
        if not isinstance(value, str):
            raise self.wrong(f"{key!r} should be a string, found {preview(value)}")
        return value


def read_lines(path: str | Path, error: type[StepladderError]) -> Iterator[tuple[str, Line]]:
    """Yield id and object of every line of a `.jsonl` or `.jsonl.gz` file."""
    path = Path(path)
    first_seen: dict[str, int] = {}
    for number, raw in raw_lines(path, error):
        if not raw.strip():
            continue
        line = Line(path, number, parse_object(path, number, raw, error), error)
        key = _id(line)
        if key in first_seen:
            raise line.wrong(f"duplicate id {key!r}, first used on line {first_seen[key]}; ids must be unique")
        first_seen[key] = number
        yield key, line
    if not first_seen:
        raise error(f"{path}: the file is empty; expected one JSON object per line")


def preview(value: object) -> str:
    """A value as shown in error messages.

    >>> preview(None), preview(["a"])
    ('nothing', '["a"]')
    """
    if value is None:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def raw_lines(path: Path, error: type[StepladderError]) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except gzip.BadGzipFile as problem:
        raise error(f"{path}: the file name ends in .gz, but the content is not gzip: {problem}") from problem
    except (EOFError, zlib.error) as problem:
        message = f"{path}: the gzip data is truncated or corrupt after line {number}; download the file again"
        raise error(message) from problem
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}") from problem


def parse_object(path: Path, number: int, raw: bytes, error: type[StepladderError]) -> dict[str, Any]:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as problem:
        found = f"byte 0x{raw[problem.start]:02x} at position {problem.start}"
        raise _wrong(error, path, number, f"not UTF-8: {found}") from problem
    try:
        data = json.loads(text.strip())
        if "\\u" in text:
            data = without_surrogates(data)
    except json.JSONDecodeError as problem:
        raise _wrong(error, path, number, f"not JSON: {problem.msg}, at column {problem.colno}") from problem
    except (ValueError, RecursionError) as problem:  # a number with thousands of digits, deep nesting
        raise _wrong(error, path, number, f"unreadable JSON: {problem}") from problem
    if not isinstance(data, dict):
        raise _wrong(error, path, number, f"expected a JSON object, found {preview(data)}")
    return data


def without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [without_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {key: without_surrogates(each) for key, each in value.items()}
    return value


def _id(line: Line) -> str:
    value = line.data.get("id")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise line.wrong(f"'id' should be a non-empty string, found {preview(value)}")
    return value


def _wrong(error: type[StepladderError], path: Path, number: int, problem: str) -> StepladderError:
    return error(f"{path}:{number}: {problem}")
