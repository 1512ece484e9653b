"""FlashRAG's format, in which most published question sets are available.

In: a file with one question per line. These fields of `metadata` are used if present:

    {"id": "q1", "question": "Who designed the bridge of Orla?", "golden_answers": ["Ena Voss", "Voss"],
     "metadata": {
        "type": "bridge",
        "supporting_facts": {"title": ["Orla", "Span One"], "ids": [["p7"], ["p9", "p10"]]},
        "question_decomposition": [{"question": "Which bridge is in Orla?", "answer": "Span One"},
                                   {"question": "Who designed #1?", "answer": "Ena Voss"}]}}

`supporting_facts.ids` has one group per gold passage, with all ids that count as this passage. Without ids, titles are
used: the gold passages are those with that title in the corpus in the same folder. Without a corpus, the title is also
the id: an index of any corpus is then searched for passages with that title (`core/questions/gold_matching.py`).
Without a decomposition, one is derived from `evidences` (2WikiMultiHopQA), else from the texts of the gold passages if
they are available (`decompositions/passage_chains.py`). `choices`, a list beside `golden_answers`, makes a
multiple-choice question; `golden_answers` are then indexes from 0, letters or texts of choices. `metadata.answer_kind`
names the kind of any other answer (`answer_fields.py`). Out: `Question`s. A question without text or answers is an
error that names the file and the line.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.dataset import LoadedSplit, collect
from stepladder.data.decompositions.gold_passages import GoldPassage, Groups, gold_groups, with_aliases
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.data.decompositions.triples import triple_hops
from stepladder.data.formats.answer_fields import Answer, read_answer, read_options, right_options
from stepladder.data.formats.base import QuestionFormat
from stepladder.data.formats.contexts import context_of, context_passages, gold_passage, read_triples, supporting_facts
from stepladder.data.formats.musique import annotated_hops, as_question, hop_kind
from stepladder.data.formats.rows import read_kind, read_question, rows
from stepladder.data.formats.twowiki import is_comparison
from stepladder.data.gold_texts import by_id, with_gold_texts
from stepladder.retrieval.corpus.reader import read_corpus


class _Lookup:
    """The passages of a corpus that the annotation of questions refers to: by id, and their ids by title."""

    def __init__(self, corpus: Path, lines: Sequence[Line]) -> None:
        ids: set[str] = set()
        titles: set[str] = set()
        for line in lines:
            metadata = _metadata(line)
            if groups := _ids(metadata, line):
                ids.update(each for group in groups for each in group)
            else:
                titles.update(supporting_facts(metadata, line))
        self.by_id: dict[str, Passage] = {}
        self.by_title: dict[str, tuple[str, ...]] = {}
        for passage in read_corpus(corpus) if ids or titles else ():
            if passage.id in ids or passage.title in titles:
                self.by_id[passage.id] = passage
            if passage.title in titles:
                self.by_title[passage.title] = (*self.by_title.get(passage.title, ()), passage.id)

    def described(self, golds: Sequence[GoldPassage]) -> dict[str, GoldPassage]:
        """Gold passages by id, each with its own title and text."""
        return {
            key: replace(gold, title=self.by_id[key].title or gold.title, text=self.by_id[key].text)
            if key in self.by_id
            else gold
            for key, gold in by_id(golds).items()
        }


def _read(path: Path, corpus: Path | None) -> LoadedSplit:
    lines = list(rows(path))
    lookup = None if corpus is None else _Lookup(corpus, lines)
    return collect(_question(line, lookup) for line in lines)


def _question(line: Line, lookup: _Lookup | None) -> Question:
    key, text, metadata = line.id("id"), read_question(line), _metadata(line)
    options = tuple(read_options(line, "choices").values()) if line.data.get("choices") else ()
    found = Answer(_right_choices(line)) if options else read_answer(line, "golden_answers", metadata)
    answers = found.answers
    golds = _gold_passages(metadata, line, lookup)
    kind = read_kind(metadata) or hop_kind(key)
    hops = _hops(metadata, golds, line)
    if not hops and (triples := read_triples(metadata, line)):
        hops = triple_hops(text, answers, triples, golds, is_comparison=is_comparison(kind))
    elif not hops:
        hops = chain_hops(text, answers, golds, kind)
    hops = with_aliases(hops, answers)
    question = Question(
        key, text, answers, hops, gold_groups(golds), kind, options=options, items=found.items, answer_kind=found.kind
    )
    return with_gold_texts(question, by_id(golds) if lookup is None else lookup.described(golds))


def _right_choices(line: Line) -> tuple[str, ...]:
    value = line.data.get("golden_answers")
    return right_options(line, read_options(line, "choices"), value if isinstance(value, list) else [value])


def _metadata(line: Line) -> dict[str, Any]:
    return line.checked("metadata", line.data.get("metadata") or {}, dict[str, Any], "an object")


def _ids(metadata: dict[str, Any], line: Line) -> Groups:
    facts = metadata.get("supporting_facts")
    ids = facts.get("ids") if isinstance(facts, dict) else None
    expected = "a list of lists of passage ids, one list per gold passage"
    groups = line.checked("supporting_facts.ids", ids or [], Groups, expected)
    if not all(groups):
        raise line.wrong(f"'supporting_facts.ids' should be {expected}; one is empty")
    return groups


def _gold_passages(metadata: dict[str, Any], line: Line, lookup: _Lookup | None) -> list[GoldPassage]:
    context = context_of(metadata, line)
    found: list[GoldPassage] = []
    if groups := _ids(metadata, line):
        titles = metadata["supporting_facts"].get("title") or []
        titles = line.checked("supporting_facts.title", titles, list[str], "a list of titles")
        known = lookup.by_id if lookup is not None else {}
        for title, ids in zip(titles if len(titles) == len(groups) else [""] * len(groups), groups):
            passage = next((known[each] for each in ids if each in known), None)
            if passage is None:
                found.append(gold_passage(title, ids, (), context))
            else:
                found.append(GoldPassage(title or passage.title, ids, passage.text))
        return found
    for title, numbers in supporting_facts(metadata, line).items():
        ids = (title,) if lookup is None else lookup.by_title.get(title, ())
        found.append(gold_passage(title, ids, numbers, context))
    return found


def _hops(metadata: dict[str, Any], golds: Sequence[GoldPassage], line: Line) -> tuple[Hop, ...]:
    hops, groups = annotated_hops(metadata, line), gold_groups(golds)
    # Gold passages can be assigned to hops only if there is one group per hop.
    passages = groups if len(groups) == len(hops) else ((),) * len(hops)
    return tuple(Hop(as_question(hop.question), hop.answer, group) for hop, group in zip(hops, passages))


FORMAT = QuestionFormat(
    "FlashRAG",
    frozenset({"question", "golden_answers"}),
    _read,
    priority=50,
    passages=lambda line: context_passages(line, _metadata(line)),
)
