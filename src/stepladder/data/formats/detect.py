"""Read a file of questions, whichever set it is from.

In: a file. Out: its questions, and the passages that stand in it. The layout is told by the keys of its first object.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Passage
from stepladder.data.dataset import Read, ReadPassages
from stepladder.data.formats.bamboogle import BAMBOOGLE
from stepladder.data.formats.base import Layout
from stepladder.data.formats.flashrag import FLASHRAG
from stepladder.data.formats.hotpotqa import HOTPOTQA
from stepladder.data.formats.musique import MUSIQUE
from stepladder.data.formats.popqa import POPQA
from stepladder.data.formats.rows import COLUMNS, QuestionFileError, is_table, rows
from stepladder.data.formats.twowiki import TWOWIKI

#: In the order in which they are tried.
LAYOUTS = (FLASHRAG, MUSIQUE, TWOWIKI, HOTPOTQA, POPQA, BAMBOOGLE)

#: Why a question has no hops, where others of its file have.
NOT_TOLD = "decompositions that the annotation does not tell"


def recognised(path: Path) -> tuple[Layout, Line]:
    """The layout of a file, and its first object."""
    first = next(rows(path))
    keys = {key.lower() for key in first.data}
    for layout in LAYOUTS:
        if layout.keys <= keys:
            return layout, first
    if is_table(path):
        raise QuestionFileError(f"{path}: {COLUMNS}; found {preview(list(first.data))}")
    known = "; ".join(f"{layout.name} ({', '.join(sorted(layout.keys))})" for layout in LAYOUTS)
    raise QuestionFileError(
        f"{path}: no set of questions that is known is written like this. Found the keys {preview(sorted(first.data))}; "
        f"expected those of one of these: {known}"
    )


def read_questions(path: Path, corpus: ReadPassages | None = None) -> Read:
    """The questions of a file. `corpus`: what their gold passages are found in, where it stands beside the file."""
    layout, _ = recognised(path)
    read = layout.read(path, corpus)
    seen: set[str] = set()
    for question in read.questions:
        if question.id in seen:
            raise QuestionFileError(f"{path}: the id {question.id!r} is used twice; ids must differ")
        seen.add(question.id)
    bare = sum(not question.hops for question in read.questions)
    if 0 < bare < len(seen):  # some have a decomposition, so it would have been made for all if it could be told
        return Read(read.questions, {**read.left_out, NOT_TOLD: bare})
    return read


def has_passages(path: Path) -> bool:
    """Whether passages stand with the questions of a file."""
    layout, first = recognised(path)
    return any(True for _ in layout.passages(first))


def has_answers(path: Path) -> bool:
    """Whether the questions of a file have answers; the first stands for all."""
    data = {key.lower(): value for key, value in recognised(path)[1].data.items()}
    return any(data.get(key) for key in ("answer", "golden_answers", "possible_answers"))


def read_passages(paths: Iterable[Path]) -> Iterator[Passage]:
    """The passages that stand in files, each once."""
    seen: set[str] = set()
    for path in paths:
        layout, _ = recognised(path)
        for line in rows(path):
            for passage in layout.passages(line):
                if passage.id not in seen:
                    seen.add(passage.id)
                    yield passage
