"""2WikiMultiHopQA's files: `train.json`, `dev.json`, and `test.json`, which has no answers.

In: a list of objects in HotpotQA's format with evidence triples (`contexts.py`), and optionally `id_aliases.json` in
the same folder: aliases of the Wikidata ids in `answer_id` and `evidences_id`. Out: `Question`s with hops
(`decompositions/triples.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from stepladder.core.io.jsonl import Line, read_objects
from stepladder.core.trace import Hop, Question
from stepladder.data.dataset import LoadedSplit, collect
from stepladder.data.decompositions.gold_passages import gold_groups
from stepladder.data.decompositions.triples import triple_hops
from stepladder.data.formats.base import PublishedSet, QuestionFormat
from stepladder.data.formats.contexts import context_passages, gold_passages, read_triples
from stepladder.data.formats.rows import QuestionFileError, clean_answers, read_kind, read_question, rows
from stepladder.data.gold_texts import by_id, with_gold_texts

_ALIASES_FILE = "id_aliases.json"
#: The names in a line of that file.
_NAMES = ("aliases", "demonyms")

Aliases = dict[str, tuple[str, ...]]


def is_comparison(kind: str) -> bool:
    """Whether questions of a kind compare values."""
    return "comparison" in kind


def _read(path: Path, _corpus: Path | None) -> LoadedSplit:
    aliases = _aliases(path.parent / _ALIASES_FILE)
    return collect(_question(line, aliases) for line in rows(path))


def _aliases(path: Path) -> Aliases:
    """Aliases by Wikidata id. The file has one object per line, despite its name."""
    if not path.is_file():
        return {}
    aliases: Aliases = {}
    for line in read_objects(path, QuestionFileError):
        lists = [line.checked(key, line.data.get(key) or [], list[str], "a list of strings") for key in _NAMES]
        aliases[line.text("Q_id")] = tuple(chain(*lists))
    return aliases


def _question(line: Line, aliases: Aliases) -> Question:
    data, golds, text, kind = line.data, gold_passages(line), read_question(line), read_kind(line.data)
    answers = clean_answers(data.get("answer"), *aliases.get(str(data.get("answer_id")), ()))
    hops = triple_hops(text, answers, read_triples(data, line), golds, is_comparison=is_comparison(kind))
    hops = _with_aliases(hops, data, aliases)
    question = Question(line.id("_id", "id"), text, answers, hops, gold_groups(golds), kind)
    return with_gold_texts(question, by_id(golds))


def _with_aliases(hops: tuple[Hop, ...], data: Mapping[str, Any], aliases: Aliases) -> tuple[Hop, ...]:
    """The hops with the aliases of their answers."""
    ids = {
        triple[2]: other[2]
        for triple, other in zip(data.get("evidences") or (), data.get("evidences_id") or ())
        if isinstance(triple, list) and isinstance(other, list) and len(triple) == len(other) == 3
    }
    return tuple(
        replace(hop, aliases=tuple(dict.fromkeys((*hop.aliases, *aliases.get(str(ids.get(hop.answer)), ())))))
        for hop in hops
    )


FORMAT = QuestionFormat(
    "2WikiMultiHopQA",
    frozenset({"question", "context", "evidences"}),
    _read,
    priority=30,
    passages=context_passages,
    published=PublishedSet(
        "2wikimultihopqa",
        "https://github.com/Alab-NII/2wikimultihop (data_ids_april7.zip)",
        ("train.json", "dev.json", _ALIASES_FILE),
    ),
    companions=(_ALIASES_FILE,),
)
