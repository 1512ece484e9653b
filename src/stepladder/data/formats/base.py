"""The contract of a layout: one way in which question sets are written down, with a module for each.

In: a file, and its objects. Out: `Question`s, and the passages that stand with them. Layouts are told apart by the keys
of their objects, so a file may have any name (`reading.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Passage
from stepladder.data.dataset import Read, ReadPassages


def _none(_line: Line) -> Iterable[Passage]:
    return ()


@dataclass(frozen=True, slots=True)
class Layout:
    """How questions are written in a file."""

    #: The set whose files first looked like this.
    name: str
    #: Keys that its objects have, in lower case.
    keys: frozenset[str]
    #: Reads a file, with the corpus beside it where there is one.
    read: Callable[[Path, ReadPassages | None], Read]
    #: The passages that stand with a question.
    passages: Callable[[Line], Iterable[Passage]] = _none


def identifier(line: Line, *names: str) -> str:
    """The id of an object, under the first of these keys that it has."""
    value = next((line.data[name] for name in names if line.data.get(name) is not None), None)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise line.wrong(f"{names[0]!r} should be a string that is not empty, found {preview(value)}")
    return value


def question_text(line: Line, name: str = "question") -> str:
    """What is asked; it must not be blank."""
    text = line.text(name).strip()
    if not text:
        raise line.wrong(f"{name!r} is blank")
    return text


def strings(value: object) -> list[str] | None:
    """A list of strings, or None for anything else."""
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else None


def accepted(*answers: Any) -> tuple[str, ...]:
    """Answers without blanks and copies, in order."""
    texts = (str(answer).strip() for answer in answers if answer is not None)
    return tuple(dict.fromkeys(text for text in texts if text))


def passage_id(title: str, text: str) -> str:
    """An id for a passage of a set that has none: the same in every file, another one for another text."""
    return f"{title}#{blake2b(text.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"
