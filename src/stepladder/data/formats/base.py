"""`QuestionFormat`: how a question file is recognized and read.

In: a file. Out: its questions, and the passages stored with them. The keys of the first row determine the format, so a
file may have any name.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Passage, Question
from stepladder.data import formats
from stepladder.data.dataset import LoadedSplit, collect
from stepladder.data.formats.rows import COLUMNS, QuestionFileError, file_type, rows

#: Reason for questions without hops in a file whose other questions have them.
NO_DECOMPOSITION = "decompositions that cannot be derived from the annotation"
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


@cache
def question_formats() -> tuple[QuestionFormat, ...]:
    """The formats of the package, in the order in which they are tried. The package is scanned on first use."""
    modules = [import_module(module.name) for module in iter_modules(formats.__path__, f"{formats.__name__}.")]
    found: list[QuestionFormat] = [module.FORMAT for module in modules if hasattr(module, "FORMAT")]
    return tuple(sorted(found, key=lambda each: -each.priority))


def detect_format(path: Path) -> tuple[QuestionFormat, Line]:
    """The format of a file, and its first row."""
    first = next(rows(path))
    keys = {key.lower() for key in first.data}
    for each in question_formats():
        if each.keys <= keys:
            return each, first
    if file_type(path) in (".csv", ".tsv"):
        raise QuestionFileError(f"{path}: {COLUMNS}; found {preview(list(first.data))}")
    known = "; ".join(f"{each.name} ({', '.join(sorted(each.keys))})" for each in question_formats())
    raise QuestionFileError(
        f"{path}: unknown question format. Found the keys {preview(sorted(first.data))}; expected the keys of one of "
        f"these: {known}"
    )


def read_questions(path: Path, corpus: Path | None = None) -> LoadedSplit:
    """The questions of a file. `corpus` is the corpus in the same folder, which contains their gold passages."""
    question_format, _ = detect_format(path)
    loaded = question_format.read(path, corpus)
    seen: set[str] = set()
    for question in loaded.questions:
        if question.id in seen:
            raise QuestionFileError(f"{path}: the id {question.id!r} is used twice; ids must be unique")
        seen.add(question.id)
    undecomposed = sum(not question.hops for question in loaded.questions)
    if 0 < undecomposed < len(seen):  # in a file without any decompositions, there is nothing to report
        return LoadedSplit(loaded.questions, {**loaded.skipped, NO_DECOMPOSITION: undecomposed})
    return loaded


def has_passages(path: Path) -> bool:
    """Whether passages are stored with the questions of a file."""
    question_format, first = detect_format(path)
    return any(True for _ in question_format.passages(first))


def has_answers(path: Path) -> bool:
    """Whether the questions of a file have answers, judging by the first one."""
    data = {key.lower(): value for key, value in detect_format(path)[1].data.items()}
    return any(data.get(key) for key in ("answer", "answer_idx", "golden_answers", "possible_answers"))


def read_passages(paths: Iterable[Path]) -> Iterator[Passage]:
    """The passages stored in question files, each id once."""
    seen: set[str] = set()
    for path in paths:
        question_format, _ = detect_format(path)
        for line in rows(path):
            for passage in question_format.passages(line):
                if passage.id not in seen:
                    seen.add(passage.id)
                    yield passage
