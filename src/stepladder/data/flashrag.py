"""Read questions in FlashRAG's layout, the one that most published sets of questions come in.

In: a `.jsonl` or `.jsonl.gz` file, one question a line. This much of `metadata` is used where it is present:

    {"id": "q1", "question": "Who designed the bridge of Orla?", "golden_answers": ["Ena Voss", "Voss"],
     "metadata": {
        "type": "bridge",
        "supporting_facts": {"ids": [["p7"], ["p9", "p10"]]},
        "question_decomposition": [{"question": "Which bridge is in Orla?", "answer": "Span One"},
                                   {"question": "Who designed #1?", "answer": "Ena Voss"}]}}

`supporting_facts.ids` has one group for each gold passage, with all the ids that count as it. Out: `Question`s. A
question that cannot be asked or graded is an error that names the file and the line.
"""

from pathlib import Path
from typing import Any

from stepladder.errors import StepladderError
from stepladder.jsonl import Line, read_lines, shown
from stepladder.trace import Hop, Question


class QuestionFileError(StepladderError):
    """A file of questions that cannot be read."""


def load_questions(path: str | Path) -> tuple[Question, ...]:
    """All questions of a file, in order."""
    return tuple(_question(key, line) for key, line in read_lines(path, QuestionFileError))


def _question(key: str, line: Line) -> Question:
    text = line.text("question").strip()
    if not text:
        raise line.wrong(f"question {key!r} is blank")
    metadata = line.data.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise line.wrong(f"'metadata' should be an object, found {shown(metadata)}")
    gold = _gold_passages(metadata, line)
    kind = metadata.get("type")
    return Question(
        id=key,
        text=text,
        answers=_answers(key, line),
        hops=_hops(metadata, gold, line),
        gold_passages=gold,
        kind=kind if isinstance(kind, str) else "",
    )


def _answers(key: str, line: Line) -> tuple[str, ...]:
    found = line.data.get("golden_answers")
    answers = [found] if isinstance(found, str) else found
    if answers is not None and not _is_strings(answers):
        raise line.wrong(f"'golden_answers' should be a list of strings, found {shown(found)}")
    kept = tuple(dict.fromkeys(answer.strip() for answer in answers or () if answer.strip()))
    if not kept:
        raise line.wrong(
            f"question {key!r} has no answers: expected at least one in 'golden_answers', found {shown(found)}"
        )
    return kept


def _gold_passages(metadata: dict[str, Any], line: Line) -> tuple[tuple[str, ...], ...]:
    facts = metadata.get("supporting_facts")
    groups = facts.get("ids") if isinstance(facts, dict) else None
    if groups is None:
        return ()
    if not isinstance(groups, list) or not all(_is_strings(group) and group for group in groups):
        raise line.wrong(
            "'supporting_facts.ids' should be a list of lists of passage ids, one list for each gold passage; "
            f"found {shown(groups)}"
        )
    return tuple(tuple(group) for group in groups)


def _hops(metadata: dict[str, Any], gold: tuple[tuple[str, ...], ...], line: Line) -> tuple[Hop, ...]:
    hops = metadata.get("question_decomposition") or []
    if not isinstance(hops, list) or not all(
        isinstance(hop, dict) and _is_strings([hop.get("question"), hop.get("answer")]) for hop in hops
    ):
        raise line.wrong(
            f"'question_decomposition' should be a list of objects with 'question' and 'answer'; found {shown(hops)}"
        )
    # Which passage states which hop is known only where the file has one group for each hop.
    passages = gold if len(gold) == len(hops) else ((),) * len(hops)
    return tuple(Hop(hop["question"], hop["answer"], group) for hop, group in zip(hops, passages))


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)
