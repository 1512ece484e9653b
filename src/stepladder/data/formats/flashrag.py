"""Read questions in FlashRAG's layout, the one that most published sets of questions come in.

In: a `.jsonl` or `.jsonl.gz` file, one question a line. This much of `metadata` is used where it is present:

    {"id": "q1", "question": "Who designed the bridge of Orla?", "golden_answers": ["Ena Voss", "Voss"],
     "metadata": {
        "type": "bridge",
        "supporting_facts": {"title": ["Orla", "Span One"], "ids": [["p7"], ["p9", "p10"]]},
        "question_decomposition": [{"question": "Which bridge is in Orla?", "answer": "Span One"},
                                   {"question": "Who designed #1?", "answer": "Ena Voss"}]}}

`supporting_facts.ids` has one group for each gold passage, with all the ids that count as it. Without ids the titles
tell: the gold passages are those of that title in the corpus beside the file, else in the question's own `context`.
In place of a decomposition there may be `evidences` (2WikiMultiHopQA); else one is made of the gold passages' texts, as
far as they are at hand (`chains.py`). Out: `Question`s. A question that cannot be asked or graded is an error that
names the file and the line.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepladder.core.io.jsonl import Line, preview, read_lines
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.dataset import Read, ReadPassages
from stepladder.data.decompositions.gold_passages import Gold, Groups, groups, with_aliases
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.data.decompositions.passage_lookup import Shelf, filled
from stepladder.data.decompositions.triples import triple_hops
from stepladder.data.formats.base import Layout, accepted, strings
from stepladder.data.formats.contexts import context_of, facts_of, gold_of, passages_of, triples_of
from stepladder.data.formats.musique import shape, worded
from stepladder.data.formats.rows import QuestionFileError
from stepladder.data.formats.twowiki import compares

__all__ = ["FLASHRAG", "QuestionFileError", "load_questions"]


def load_questions(path: str | Path, corpus: ReadPassages | None = None) -> tuple[Question, ...]:
    """All questions of a file, in order. `corpus`: the passages that they are about, where they are at hand."""
    lines = list(read_lines(path, QuestionFileError))
    shelf = filled(corpus, *_wanted([line for _, line in lines])) if corpus is not None else Shelf()
    return tuple(_question(key, line, shelf) for key, line in lines)


def _wanted(lines: Sequence[Line]) -> tuple[set[str], set[str]]:
    """The ids of gold passages whose texts are needed, and the titles of those whose ids are."""
    ids: set[str] = set()
    titles: set[str] = set()
    for line in lines:
        metadata = _metadata(line)
        if not (known := _ids(metadata, line)):
            titles.update(facts_of(metadata, line))
        elif not metadata.get("question_decomposition") and not metadata.get("evidences"):
            ids.update(each for group in known for each in group)
    return ids, titles


def _question(key: str, line: Line, shelf: Shelf) -> Question:
    text = line.text("question").strip()
    if not text:
        raise line.wrong(f"question {key!r} is blank")
    metadata = _metadata(line)
    answers = _answers(key, line)
    golds = _golds(metadata, line, shelf)
    kind = metadata.get("type")
    kind = kind if isinstance(kind, str) else shape(key)
    hops = _given_hops(metadata, golds, line)
    if not hops and (triples := triples_of(metadata, line)):
        hops = triple_hops(text, answers, triples, golds, compares=compares(kind))
    elif not hops:
        hops = chain_hops(text, answers, golds, kind)
    return Question(key, text, answers, with_aliases(hops, answers), groups(golds), kind)


def _metadata(line: Line) -> dict[str, Any]:
    metadata = line.data.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise line.wrong(f"'metadata' should be an object, found {preview(metadata)}")
    return metadata


def _answers(key: str, line: Line) -> tuple[str, ...]:
    found = line.data.get("golden_answers")
    answers = [found] if isinstance(found, str) else found
    if answers is not None and strings(answers) is None:
        raise line.wrong(f"'golden_answers' should be a list of strings, found {preview(found)}")
    kept = accepted(*(answers or ()))
    if not kept:
        raise line.wrong(
            f"question {key!r} has no answers: expected at least one in 'golden_answers', found {preview(found)}"
        )
    return kept


def _ids(metadata: dict[str, Any], line: Line) -> Groups:
    facts = metadata.get("supporting_facts")
    found = facts.get("ids") if isinstance(facts, dict) else None
    if found is None:
        return ()
    if not isinstance(found, list) or not all(strings(group) for group in found):
        raise line.wrong(
            "'supporting_facts.ids' should be a list of lists of passage ids, one list for each gold passage; "
            f"found {preview(found)}"
        )
    return tuple(tuple(group) for group in found)


def _golds(metadata: dict[str, Any], line: Line, shelf: Shelf) -> list[Gold]:
    context = context_of(metadata, line)
    if ids := _ids(metadata, line):
        titles = strings(metadata["supporting_facts"].get("title")) or []
        return [
            shelf.gold(titles[place] if len(titles) == len(ids) else "", group, context)
            for place, group in enumerate(ids)
        ]
    return [
        gold_of(title, shelf.titled(title) if shelf.is_filled else (title,) * (title in context), numbers, context)
        for title, numbers in facts_of(metadata, line).items()
    ]


def _given_hops(metadata: dict[str, Any], golds: Sequence[Gold], line: Line) -> tuple[Hop, ...]:
    hops = metadata.get("question_decomposition") or []
    if not isinstance(hops, list) or not all(
        isinstance(hop, dict) and strings([hop.get("question"), hop.get("answer")]) is not None for hop in hops
    ):
        raise line.wrong(
            f"'question_decomposition' should be a list of objects with 'question' and 'answer'; found {preview(hops)}"
        )
    # Which passage states which hop is known only where the file has one group for each hop.
    found = groups(golds)
    passages = found if len(found) == len(hops) else ((),) * len(hops)
    return tuple(Hop(worded(hop["question"]), hop["answer"], group) for hop, group in zip(hops, passages))


def _read(path: Path, corpus: ReadPassages | None) -> Read:
    return Read(load_questions(path, corpus), {})


def _passages(line: Line) -> Iterable[Passage]:
    return passages_of(context_of(_metadata(line), line))


FLASHRAG = Layout("FlashRAG", frozenset({"question", "golden_answers"}), _read, _passages)
