"""Bamboogle's file, and others that have a question and an answer and nothing else.

In: a table or JSON objects with `Question` and `Answer`, in any case; an `id` where there is one. Out: `Question`s,
numbered from 1 where they have no ids. No passages come with them.
"""

from dataclasses import replace
from pathlib import Path

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Question
from stepladder.data.dataset import Read, ReadPassages, counted
from stepladder.data.formats.base import Layout, accepted, identifier, question_text, strings
from stepladder.data.formats.rows import rows


def _read(path: Path, _corpus: ReadPassages | None) -> Read:
    return counted(_question(number, line) for number, line in enumerate(rows(path), start=1))


def _question(number: int, line: Line) -> Question:
    line = replace(line, data={key.lower(): value for key, value in line.data.items()})
    key = identifier(line, "id") if line.data.get("id") else str(number)
    value = line.data.get("answer")
    given = [value] if isinstance(value, str) else strings(value)
    if given is None or not (answers := accepted(*given)):
        raise line.wrong(f"'answer' should be a string that is not empty, or a list of them; found {preview(value)}")
    return Question(key, question_text(line), answers)


BAMBOOGLE = Layout("Bamboogle", frozenset({"question", "answer"}), _read)
