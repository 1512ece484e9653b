"""The nested fields of HotpotQA's format: contexts, supporting facts and evidence triples.

In: a row. Lists of pairs may also be two columns, as in copies that were converted to a table:

    "context": [["Orla", ["A town.", " It has a bridge."]], ...]  or  {"title": [...], "sentences": [[...], ...]}
    "supporting_facts": [["Orla", 1], ...]                        or  {"title": [...], "sent_id": [...]}
    "evidences": [["Orla", "country", "Velm"], ...]

Out: paragraphs by title, `GoldPassage`s, triples. A title is unique to one article, so it is also the passage id.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepladder.core.io.jsonl import Line
from stepladder.core.trace import Passage
from stepladder.data.decompositions.gold_passages import GoldPassage
from stepladder.data.decompositions.triples import Triple

#: The sentences of every paragraph, by title.
Context = dict[str, tuple[str, ...]]


def context_of(data: Mapping[str, Any], line: Line) -> Context:
    """The paragraphs of a row; the first if a title occurs twice."""
    context: Context = {}
    for title, sentences in _pairs(data.get("context"), ("sentences", "content"), "context", line):
        texts = [sentences] if isinstance(sentences, str) else sentences
        texts = line.checked("context", texts, list[str], "a list of sentences for each title")
        context.setdefault(title.strip(), tuple(text.strip() for text in texts))
    return context


def supporting_facts(data: Mapping[str, Any], line: Line) -> dict[str, list[int]]:
    """The indices of the supporting sentences, by title."""
    facts: dict[str, list[int]] = {}
    for title, number in _pairs(data.get("supporting_facts"), ("sent_id",), "supporting_facts", line):
        facts.setdefault(title.strip(), []).extend([number] if isinstance(number, int) else [])
    return facts


def gold_passages(line: Line) -> list[GoldPassage]:
    """The gold passages named by the supporting facts of a row, with their texts from its context."""
    context = context_of(line.data, line)
    return [
        gold_passage(title, (title,), numbers, context) for title, numbers in supporting_facts(line.data, line).items()
    ]


def gold_passage(title: str, ids: tuple[str, ...], numbers: Sequence[int], context: Context) -> GoldPassage:
    """A gold passage with its text and the supporting sentences in it."""
    sentences = context.get(title, ())
    supporting = (sentences[number] for number in sorted(set(numbers)) if 0 <= number < len(sentences))
    return GoldPassage(title, ids, " ".join(filter(None, sentences)), " ".join(filter(None, supporting)))


def read_triples(data: Mapping[str, Any], line: Line) -> list[Triple]:
    """Evidence as subject, relation, object."""
    found = data.get("evidences") or []
    if isinstance(found, list):  # some copies have objects instead of lists
        found = [list(each.values()) if isinstance(each, dict) else each for each in found]
    triples = line.checked("evidences", found, list[Triple], "triples: subject, relation, object")
    return [(subject.strip(), relation.strip(), value.strip()) for subject, relation, value in triples]


def context_passages(line: Line, data: Mapping[str, Any] | None = None) -> Iterator[Passage]:
    """The paragraphs of a row, or of an object in it, as passages."""
    for title, sentences in context_of(line.data if data is None else data, line).items():
        if text := " ".join(filter(None, sentences)):
            yield Passage(title, title, text)


def _pairs(value: Any, columns: tuple[str, ...], name: str, line: Line) -> list[tuple[str, Any]]:
    """Pairs of a title and a value, from a list of pairs or from two columns."""
    pairs = value or []
    if isinstance(value, dict):
        titles = value.get("title") or []
        second = next((value[key] for key in columns if key in value), [None] * len(titles))
        pairs = list(zip(titles, second)) if isinstance(titles, list) and isinstance(second, list) else value
    return line.checked(name, pairs, list[tuple[str, Any]], "pairs that begin with a title")
