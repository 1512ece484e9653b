"""PopQA's file: `popQA.tsv`, on the hub `test.tsv`.

In: a table with the columns `id`, `prop` (the relation asked for), `question`, and `possible_answers`, a JSON list.
Out: `Question`s of one hop, the question itself. No passages come with them.
"""

import json
from pathlib import Path

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Hop, Question
from stepladder.data.dataset import Read, ReadPassages, counted
from stepladder.data.formats.base import Layout, accepted, identifier, question_text, strings
from stepladder.data.formats.rows import rows


def _read(path: Path, _corpus: ReadPassages | None) -> Read:
    return counted(_question(line) for line in rows(path))


def _question(line: Line) -> Question:
    text = question_text(line)
    answers = accepted(*_answers(line))
    hops = (Hop(text, answers[0], aliases=answers[1:]),) if answers else ()
    return Question(identifier(line, "id"), text, answers, hops, kind=str(line.data.get("prop") or ""))


def _answers(line: Line) -> list[str]:
    value = line.data["possible_answers"]
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        found = None
    if (answers := strings(found)) is None:
        raise line.wrong(f"'possible_answers' should be a JSON list of strings, found {preview(value)}")
    return answers


POPQA = Layout("PopQA", frozenset({"question", "possible_answers"}), _read)
