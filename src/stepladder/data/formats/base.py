"""`QuestionFormat`: how a question file is recognized and read, and helpers that readers share.

In: a file and its rows. Out: `Question`s, and the passages stored with them. A format is recognized by the keys of the
rows, so a file may have any name (`detect.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Passage, Question
from stepladder.data.dataset import LazyPassages, LoadedSplit, collect
from stepladder.data.formats.rows import rows

#: Reads a file. The second argument is the corpus in the same folder, if there is one.
Reader = Callable[[Path, LazyPassages | None], LoadedSplit]


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """A published question set: its name and how to get it."""

    name: str
    #: Where to download it.
    url: str
    #: The files to download.
    files: tuple[str, ...]
    #: The split of a set that has a single file, whose name contains the set's name but no split.
    split: str = ""
    #: Part of the name of the file to use if there are several for a split.
    preferred: str = ""


@dataclass(frozen=True, slots=True)
class QuestionFormat:
    """A format of question files."""

    name: str
    #: The keys that identify a row of this format, in lower case.
    keys: frozenset[str]
    read: Reader
    #: Formats with a higher priority are tried first. A format whose keys include another's needs the higher priority.
    priority: int
    #: The passages stored with a question.
    passages: Callable[[Line], Iterable[Passage]] = lambda _line: ()
    published: PublishedSet | None = None
    #: Names of other files in the folder that are read together with a question file.
    companions: tuple[str, ...] = ()


def read_rows(parse: Callable[[Line], Question | str]) -> Reader:
    """A reader that parses every row independently, into a question or a reason for skipping it."""
    return lambda path, _corpus: collect(map(parse, rows(path)))


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


def passage_id(title: str, text: str) -> str:
    """An id for a passage of a set without passage ids. It depends only on title and text."""
    return f"{title}#{blake2b(text.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"
