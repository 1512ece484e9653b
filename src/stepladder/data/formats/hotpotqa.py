"""HotpotQA's files: `hotpot_train_v1.1.json`, `hotpot_dev_distractor_v1.json`, `hotpot_dev_fullwiki_v1.json`.

In: a list of objects with their context and the supporting facts in it (`contexts.py`); the fullwiki files need not
have the gold passages, the test file has no answers. Out: `Question`s, with hops where the texts of the gold passages
tell how they hang together (`chains.py`).
"""

from collections.abc import Iterable
from pathlib import Path

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Passage, Question
from stepladder.data.dataset import Read, ReadPassages, counted
from stepladder.data.decompositions.gold_passages import groups
from stepladder.data.decompositions.passage_chains import chain_hops
from stepladder.data.formats.base import Layout, accepted, identifier, question_text
from stepladder.data.formats.contexts import context_of, facts_of, golds_of, passages_of
from stepladder.data.formats.rows import rows


def _read(path: Path, _corpus: ReadPassages | None) -> Read:
    return counted(_question(line) for line in rows(path))


def _question(line: Line) -> Question:
    golds = golds_of(facts_of(line.data, line), context_of(line.data, line))
    text, kind, answers = question_text(line), line.data.get("type"), accepted(line.data.get("answer"))
    kind = kind if isinstance(kind, str) else ""
    hops = chain_hops(text, answers, golds, kind)
    return Question(identifier(line, "_id", "id"), text, answers, hops, groups(golds), kind)


def _passages(line: Line) -> Iterable[Passage]:
    return passages_of(context_of(line.data, line))


HOTPOTQA = Layout("HotpotQA", frozenset({"question", "context"}), _read, _passages)
