"""FlashRAG's format, in which most published question sets are available.

In: a `.jsonl` or `.jsonl.gz` file with one question per line. These fields of `metadata` are used if present:

    {"id": "q1", "question": "Who designed the bridge of Orla?", "golden_answers": ["Ena Voss", "Voss"],
     "metadata": {
        "type": "bridge",
        "supporting_facts": {"title": ["Orla", "Span One"], "ids": [["p7"], ["p9", "p10"]]},
        "question_decomposition": [{"question": "Which bridge is in Orla?", "answer": "Span One"},
                                   {"question": "Who designed #1?", "answer": "Ena Voss"}]}}

`supporting_facts.ids` has one group per gold passage, with all ids that count as this passage. Without ids, titles are
used: the gold passages are those with that title in the corpus in the same folder, else in the question's `context`.
Without a decomposition, one is derived from `evidences` (2WikiMultiHopQA), else from the texts of the gold passages if
they are available (`decompositions/passage_chains.py`). Out: `Question`s. A question without text or answers is an
error that names the file and the line.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepladder.core.io.jsonl import Line, preview, read_lines
from stepladder.core.trace import Hop, Question
from stepladder.data.dataset import LazyPassages, LoadedSplit
from stepladder.data.decompositions.gold_passages import GoldPassage, Groups, gold_groups, with_aliases
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.data.decompositions.triples import triple_hops
from stepladder.data.formats.base import QuestionFormat
from stepladder.data.formats.contexts import context_of, context_passages, gold_passage, read_triples, supporting_facts
from stepladder.data.formats.musique import as_question, hop_kind
from stepladder.data.formats.passage_lookup import PassageLookup, look_up
from stepladder.data.formats.rows import QuestionFileError, clean_answers, string_list
from stepladder.data.formats.twowiki import is_comparison

__all__ = ["FORMAT", "QuestionFileError", "load_questions"]


def load_questions(path: str | Path, corpus: LazyPassages | None = None) -> tuple[Question, ...]:
    """All questions of a file, in order. `corpus` contains their gold passages, if available."""
    lines = list(read_lines(path, QuestionFileError))
    lookup = look_up(corpus, *_references([line for _, line in lines])) if corpus is not None else PassageLookup()
    return tuple(_question(key, line, lookup) for key, line in lines)


def _references(lines: Sequence[Line]) -> tuple[set[str], set[str]]:
    """The ids of gold passages whose texts are needed, and the titles of gold passages whose ids are needed."""
    ids: set[str] = set()
    titles: set[str] = set()
    for line in lines:
        metadata = _metadata(line)
        if not (groups := _ids(metadata, line)):
            titles.update(supporting_facts(metadata, line))
        elif not metadata.get("question_decomposition") and not metadata.get("evidences"):
            ids.update(each for group in groups for each in group)
    return ids, titles


def _question(key: str, line: Line, lookup: PassageLookup) -> Question:
    text = line.text("question").strip()
    if not text:
        raise line.wrong(f"question {key!r} is blank")
    metadata = _metadata(line)
    answers = _answers(key, line)
    golds = _gold_passages(metadata, line, lookup)
    kind = metadata.get("type")
    kind = kind if isinstance(kind, str) else hop_kind(key)
    hops = _annotated_hops(metadata, golds, line)
    if not hops and (triples := read_triples(metadata, line)):
        hops = triple_hops(text, answers, triples, golds, is_comparison=is_comparison(kind))
    elif not hops:
        hops = chain_hops(text, answers, golds, kind)
    return Question(key, text, answers, with_aliases(hops, answers), gold_groups(golds), kind)


def _metadata(line: Line) -> dict[str, Any]:
    metadata = line.data.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise line.wrong(f"'metadata' should be an object, found {preview(metadata)}")
    return metadata


def _answers(key: str, line: Line) -> tuple[str, ...]:
    value = line.data.get("golden_answers")
    answers = [value] if isinstance(value, str) else value
    if answers is not None and string_list(answers) is None:
        raise line.wrong(f"'golden_answers' should be a list of strings, found {preview(value)}")
    accepted = clean_answers(*(answers or ()))
    if not accepted:
        raise line.wrong(
            f"question {key!r} has no answers: expected at least one in 'golden_answers', found {preview(value)}"
        )
    return accepted


def _ids(metadata: dict[str, Any], line: Line) -> Groups:
    facts = metadata.get("supporting_facts")
    ids = facts.get("ids") if isinstance(facts, dict) else None
    if ids is None:
        return ()
    if not isinstance(ids, list) or not all(string_list(group) for group in ids):
        raise line.wrong(
            "'supporting_facts.ids' should be a list of lists of passage ids, one list per gold passage; "
            f"found {preview(ids)}"
        )
    return tuple(tuple(group) for group in ids)


def _gold_passages(metadata: dict[str, Any], line: Line, lookup: PassageLookup) -> list[GoldPassage]:
    context = context_of(metadata, line)
    if ids := _ids(metadata, line):
        titles = string_list(metadata["supporting_facts"].get("title")) or []
        if len(titles) != len(ids):
            titles = [""] * len(ids)
        return [lookup.gold_passage(title, group, context) for title, group in zip(titles, ids)]
    return [
        gold_passage(
            title, lookup.ids_titled(title) if lookup.has_corpus else (title,) * (title in context), numbers, context
        )
        for title, numbers in supporting_facts(metadata, line).items()
    ]


def _annotated_hops(metadata: dict[str, Any], golds: Sequence[GoldPassage], line: Line) -> tuple[Hop, ...]:
    hops = metadata.get("question_decomposition") or []
    if not isinstance(hops, list) or not all(
        isinstance(hop, dict) and string_list([hop.get("question"), hop.get("answer")]) is not None for hop in hops
    ):
        raise line.wrong(
            f"'question_decomposition' should be a list of objects with 'question' and 'answer'; found {preview(hops)}"
        )
    # Gold passages can be assigned to hops only if there is one group per hop.
    groups = gold_groups(golds)
    passages = groups if len(groups) == len(hops) else ((),) * len(hops)
    return tuple(Hop(as_question(hop["question"]), hop["answer"], group) for hop, group in zip(hops, passages))


FORMAT = QuestionFormat(
    "FlashRAG",
    frozenset({"question", "golden_answers"}),
    lambda path, corpus: LoadedSplit(load_questions(path, corpus), {}),
    priority=50,
    passages=lambda line: context_passages(line, _metadata(line)),
)
