"""MedQA's files, and any other file of multiple-choice questions.

In: one object per line, as in MedQA's official files and in `GBaker/MedQA-USMLE-4-options` on the Hugging Face hub:

    {"question": "Which vitamin ...?", "options": {"A": "Vitamin A", "B": "Vitamin C"}, "answer": "Vitamin C",
     "answer_idx": "B", "meta_info": "step1"}

`options` may also be a list. The right one is named by `answer_idx`, by `answer`, or by both, which then have to agree:
by its letter, or by its text; `answer_idx` also by its index from 0. `id` is optional. Out: `Question`s with options,
numbered from 1 if they have no ids, without passages. Options that lack the answer are an error.
"""

from pathlib import Path

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Question
from stepladder.data.dataset import LoadedSplit, collect
from stepladder.data.formats.answer_fields import read_options, right_options
from stepladder.data.formats.base import PublishedSet, QuestionFormat
from stepladder.data.formats.rows import read_question, rows


def _read(path: Path, _corpus: Path | None) -> LoadedSplit:
    return collect(_question(number, line) for number, line in enumerate(rows(path), start=1))


def _question(number: int, line: Line) -> Question:
    data, options = line.data, read_options(line, "options")
    key = line.id("id") if data.get("id") is not None else str(number)
    given = {name: data[name] for name in ("answer_idx", "answer") if data.get(name) not in (None, "")}
    answers = {
        # Next to `answer_idx`, the answer is a text; a number is the text of an option before it is an index.
        name: right_options(
            line, options, [value], texts_first=name == "answer" and ("answer_idx" in given or isinstance(value, int))
        )[0]
        for name, value in given.items()
    }
    if len(set(answers.values())) > 1:
        raise line.wrong(f"'answer_idx' is {preview(given['answer_idx'])}, and 'answer' is another option")
    kind = str(data.get("meta_info") or "")
    texts = tuple(dict.fromkeys(answers.values()))
    return Question(key, read_question(line), texts, kind=kind, options=tuple(options.values()))


FORMAT = QuestionFormat(
    "MedQA",
    frozenset({"question", "options"}),
    _read,
    priority=40,
    published=PublishedSet(
        "medqa",
        "https://huggingface.co/datasets/GBaker/MedQA-USMLE-4-options",
        ("phrases_no_exclude_train.jsonl", "phrases_no_exclude_test.jsonl"),
    ),
)
