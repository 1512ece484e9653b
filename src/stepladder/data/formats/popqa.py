"""PopQA's file: `popQA.tsv`, named `test.tsv` on the Hugging Face hub.

In: a table with the columns `id`, `prop` (the relation), `question`, and `possible_answers`, a JSON list. Out:
`Question`s with one hop, the question itself, and without passages.
"""

import json
from contextlib import suppress

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Hop, Question
from stepladder.data.formats.base import PublishedSet, QuestionFormat, read_rows
from stepladder.data.formats.rows import clean_answers, read_question


def _question(line: Line) -> Question:
    text = read_question(line)
    value = line.data["possible_answers"]
    with suppress(json.JSONDecodeError, TypeError):
        value = json.loads(value)
    answers = clean_answers(*line.checked("possible_answers", value, list[str], "a JSON list of strings"))
    hops = (Hop(text, answers[0], aliases=answers[1:]),) if answers else ()
    return Question(line.id("id"), text, answers, hops, kind=str(line.data.get("prop") or ""))


FORMAT = QuestionFormat(
    "PopQA",
    frozenset({"question", "possible_answers"}),
    read_rows(_question),
    priority=10,
    published=PublishedSet("popqa", "https://huggingface.co/datasets/akariasai/PopQA", ("test.tsv",), split="test"),
)
