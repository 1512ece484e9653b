"""`QuestionFormat`: how a question file is recognized and read.

In: a file and its rows. Out: `Question`s, and the passages stored with them. A format is recognized by the keys of the
rows, so a file may have any name (`detect.py`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Passage, Question
from stepladder.data.dataset import LoadedSplit, collect
from stepladder.data.formats.rows import rows

#: Reads a file. The second argument is the corpus in the same folder, if there is one.
Reader = Callable[[Path, Path | None], LoadedSplit]


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
