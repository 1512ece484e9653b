"""2WikiMultiHopQA's files: `train.json`, `dev.json`, and `test.json`, which has no answers.

In: a list of objects in HotpotQA's layout with evidence triples (`contexts.py`), and `id_aliases.json` beside them
where it is there: other names of what `answer_id` and `evidences_id` name. Out: `Question`s with hops (`triples.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepladder.core.io.jsonl import Line, parse_object, raw_lines
from stepladder.core.trace import Hop, Passage, Question
from stepladder.data.dataset import Read, ReadPassages, counted
from stepladder.data.decompositions.gold_passages import groups
from stepladder.data.decompositions.triples import triple_hops
from stepladder.data.formats.base import Layout, accepted, identifier, question_text, strings
from stepladder.data.formats.contexts import context_of, facts_of, golds_of, passages_of, triples_of
from stepladder.data.formats.rows import QuestionFileError, rows

ALIASES = "id_aliases.json"

Aliases = dict[str, tuple[str, ...]]


def compares(kind: str) -> bool:
    """Whether questions of a kind compare what was found."""
    return "comparison" in kind


def _read(path: Path, _corpus: ReadPassages | None) -> Read:
    aliases = _aliases(path.parent / ALIASES)
    return counted(_question(line, aliases) for line in rows(path))


def _aliases(path: Path) -> Aliases:
    """Other names by Wikidata id: one object a line, in spite of the file's name."""
    if not path.is_file():
        return {}
    found: Aliases = {}
    for number, raw in raw_lines(path, QuestionFileError):
        if raw.strip():
            line = Line(path, number, parse_object(path, number, raw, QuestionFileError), QuestionFileError)
            names = [*(strings(line.data.get("aliases")) or ()), *(strings(line.data.get("demonyms")) or ())]
            found[line.text("Q_id")] = tuple(names)
    return found


def _question(line: Line, aliases: Aliases) -> Question:
    data = line.data
    golds = golds_of(facts_of(data, line), context_of(data, line))
    text, kind = question_text(line), data.get("type")
    kind = kind if isinstance(kind, str) else ""
    answers = accepted(data.get("answer"), *aliases.get(str(data.get("answer_id")), ()))
    hops = triple_hops(text, answers, triples_of(data, line), golds, compares=compares(kind))
    hops = _with_names(hops, data, aliases)
    return Question(identifier(line, "_id", "id"), text, answers, hops, groups(golds), kind)


def _with_names(hops: tuple[Hop, ...], data: Mapping[str, Any], aliases: Aliases) -> tuple[Hop, ...]:
    """The hops with the other names of their answers."""
    ids = {
        triple[2]: other[2]
        for triple, other in zip(data.get("evidences") or (), data.get("evidences_id") or ())
        if isinstance(triple, list) and isinstance(other, list) and len(triple) == len(other) == 3
    }
    return tuple(
        replace(hop, aliases=tuple(dict.fromkeys((*hop.aliases, *aliases.get(str(ids.get(hop.answer)), ())))))
        for hop in hops
    )


def _passages(line: Line) -> Iterable[Passage]:
    return passages_of(context_of(line.data, line))


TWOWIKI = Layout("2WikiMultiHopQA", frozenset({"question", "context", "evidences"}), _read, _passages)
