"""Read third-party JSON Lines files, plain or gzipped, with errors that name file and line.

In: a path and the error class to raise. Out: the lines one at a time, without blank ones. Lone surrogates from JSON
escapes, which UTF-8 cannot encode, become U+FFFD.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.memory import format_bytes
from stepladder.core.unicode import without_surrogates

T = TypeVar("T")

#: Called with a function that returns how many bytes of an opened file have been read so far.
Watch = Callable[[Callable[[], int]], object]

#: Maximum bytes of a line. A few MB of gzip can unpack to one that fills the memory.
MAX_LINE = 2**28


def ignore_position(tell: Callable[[], int]) -> None:
    """A `Watch` that does nothing."""


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
        return self.error(f"{self.path}:{self.number}: {problem}")

    def text(self, key: str) -> str:
        """The string under a required key."""
        return self.checked(key, self.data.get(key), str, "a string")

    def id(self, *keys: str) -> str:
        """The id, from the first of these keys that the line has."""
        value = next((self.data[key] for key in keys if self.data.get(key) is not None), None)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(f"{keys[0]!r} should be a non-empty string, found {preview(value)}")
        return value

    def checked(self, name: str, value: object, kind: type[T], expected: str) -> T:
        """A value of the line if it has this type; else an error that says what was expected."""
        try:
            found: T = _validator(kind).validate_python(value)
            return found
        except ValidationError as error:
            raise self.wrong(f"{name!r} should be {expected}, found {preview(value)}") from error


#: The validator of a type.
_validator: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def preview(value: object) -> str:
    """A value as shown in error messages.

    >>> preview(None), preview(["a"])
    ('nothing', '["a"]')
    """
    if value is None:
        return "nothing"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_objects(path: Path, error: type[StepladderError], watch: Watch = ignore_position) -> Iterator[Line]:
    """The object of every line that is not blank."""
    for number, text in enumerate(text_lines(path, error, watch), start=1):
        if text := text.strip():
            yield parse_object(path, number, text, error)


def parse_object(path: Path, number: int, text: str, error: type[StepladderError]) -> Line:
    """The object in a line."""
    try:
        data = json.loads(text)
        if "\\u" in text:
            data = without_surrogates(data)
    except json.JSONDecodeError as problem:
        raise error(f"{path}:{number}: not JSON: {problem.msg}, at column {problem.colno}") from problem
    except (ValueError, RecursionError) as problem:  # a number with thousands of digits, deep nesting
        raise error(f"{path}:{number}: unreadable JSON: {problem}") from problem
    if not isinstance(data, dict):
        raise error(f"{path}:{number}: expected a JSON object, found {preview(data)}")
    return Line(path, number, data, error)


def text_lines(path: Path, error: type[StepladderError], watch: Watch = ignore_position) -> Iterator[str]:
    """The lines of a UTF-8 text, plain or gzipped."""
    number, raw = 0, b""
    try:
        with path.open("rb") as stored, gzip.open(stored) if path.suffix == ".gz" else stored as file:
            watch(stored.tell)
            for number, raw in enumerate(iter(partial(file.readline, MAX_LINE), b""), start=1):
                if len(raw) == MAX_LINE:
                    raise error(f"{path}:{number}: a line of more than {format_bytes(MAX_LINE)}; expected JSON Lines")
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except FileNotFoundError:
        raise error(f"{path}: no such file") from None
    except UnicodeDecodeError as problem:
        found = f"byte 0x{raw[problem.start]:02x} at position {problem.start}"
        raise error(f"{path}:{number}: not UTF-8: {found}; save the file as UTF-8") from problem
    except gzip.BadGzipFile as problem:
        raise error(f"{path}: the file name ends in .gz, but the content is not gzip: {problem}") from problem
    except (EOFError, zlib.error) as problem:
        message = f"{path}: the gzip data is truncated or corrupt after line {number}; download the file again"
        raise error(message) from problem
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}") from problem
