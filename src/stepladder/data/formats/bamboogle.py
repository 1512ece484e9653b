"""Bamboogle's file, and any other file with a question and an answer per row.

In: a table or JSON objects with the keys `Question` and `Answer`, in any case, and optionally `id` and `answer_kind`
(`answer_fields.py`). Out: `Question`s, numbered from 1 if they have no ids, without passages.
"""

from dataclasses import replace
from pathlib import Path

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Question
from stepladder.data.dataset import LoadedSplit, collect
from stepladder.data.formats.answer_fields import read_answer
from stepladder.data.formats.base import PublishedSet, QuestionFormat
from stepladder.data.formats.rows import read_question, rows


def _read(path: Path, _corpus: Path | None) -> LoadedSplit:
    return collect(_question(number, line) for number, line in enumerate(rows(path), start=1))


def _question(number: int, line: Line) -> Question:
    line = replace(line, data={key.lower(): value for key, value in line.data.items()})
    key = line.id("id") if line.data.get("id") else str(number)
    found = read_answer(line, "answer", line.data)
    return Question(key, read_question(line), found.answers, items=found.items, answer_kind=found.kind)


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
