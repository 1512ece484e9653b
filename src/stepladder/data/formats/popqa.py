"""PopQA's file: `popQA.tsv`, named `test.tsv` on the Hugging Face hub.

In: a table with the columns `id`, `prop` (the relation), `question`, and `possible_answers`, a JSON list. Out:
`Question`s with one hop, the question itself, and without passages.
"""

import json

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Hop, Question
from stepladder.data.formats.base import PublishedSet, QuestionFormat, read_rows
from stepladder.data.formats.rows import clean_answers, read_id, read_question, string_list


def _question(line: Line) -> Question:
    text = read_question(line)
    answers = clean_answers(*_answers(line))
    hops = (Hop(text, answers[0], aliases=answers[1:]),) if answers else ()
    return Question(read_id(line, "id"), text, answers, hops, kind=str(line.data.get("prop") or ""))


def _answers(line: Line) -> list[str]:
    value = line.data["possible_answers"]
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        parsed = None
    if (answers := string_list(parsed)) is None:
        raise line.wrong(f"'possible_answers' should be a JSON list of strings, found {preview(value)}")
    return answers


FORMAT = QuestionFormat(
    "PopQA",
    frozenset({"question", "possible_answers"}),
    read_rows(_question),
    priority=10,
    published=PublishedSet("popqa", "https://huggingface.co/datasets/akariasai/PopQA", ("test.tsv",), split="test"),
)
