"""Bamboogle's file, and any other file with a question and an answer per row.

In: a table or JSON objects with the keys `Question` and `Answer`, in any case, and optionally `id`. Out: `Question`s,
numbered from 1 if they have no ids, without passages.
"""

from dataclasses import replace
from pathlib import Path

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Question
from stepladder.data.dataset import LazyPassages, LoadedSplit, collect
from stepladder.data.formats.base import PublishedSet, QuestionFormat
from stepladder.data.formats.rows import clean_answers, read_id, read_question, rows, string_list


def _read(path: Path, _corpus: LazyPassages | None) -> LoadedSplit:
    return collect(_question(number, line) for number, line in enumerate(rows(path), start=1))


def _question(number: int, line: Line) -> Question:
    line = replace(line, data={key.lower(): value for key, value in line.data.items()})
    key = read_id(line, "id") if line.data.get("id") else str(number)
    value = line.data.get("answer")
    answers = [value] if isinstance(value, str) else string_list(value)
    if answers is None or not (accepted := clean_answers(*answers)):
        raise line.wrong(f"'answer' should be a non-empty string or a list of them, found {preview(value)}")
    return Question(key, read_question(line), accepted)


FORMAT = QuestionFormat(
    "Bamboogle",
    frozenset({"question", "answer"}),
    _read,
    priority=0,
    published=PublishedSet(
        "bamboogle",
        "https://github.com/ofirpress/self-ask (bamboogle)",
        ("Bamboogle Prerelease - Sheet1.csv",),
        split="test",
    ),
)
