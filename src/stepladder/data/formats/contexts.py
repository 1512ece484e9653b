"""The nested fields of HotpotQA's format: contexts, supporting facts and evidence triples.

In: a row. Lists of pairs may also be two columns, as in copies that were converted to a table:

    "context": [["Orla", ["A town.", " It has a bridge."]], ...]  or  {"title": [...], "sentences": [[...], ...]}
    "supporting_facts": [["Orla", 1], ...]                        or  {"title": [...], "sent_id": [...]}
    "evidences": [["Orla", "country", "Velm"], ...]

Out: paragraphs by title, `GoldPassage`s, triples. A title is unique to one article, so it is also the passage id.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stepladder.core.io.jsonl import Line, preview
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
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise line.wrong(f"'context' should have a list of sentences for each title; found {preview(sentences)}")
        context.setdefault(title.strip(), tuple(text.strip() for text in texts))
    return context


def supporting_facts(data: Mapping[str, Any], line: Line) -> dict[str, list[int]]:
    """The indices of the supporting sentences, by title."""
    facts: dict[str, list[int]] = {}
    for title, number in _pairs(data.get("supporting_facts"), ("sent_id",), "supporting_facts", line):
        facts.setdefault(title.strip(), []).extend([number] if isinstance(number, int) else [])
    return facts


def gold_passages(facts: Mapping[str, list[int]], context: Context) -> list[GoldPassage]:
    """The gold passages named by supporting facts."""
    return [gold_passage(title, (title,), numbers, context) for title, numbers in facts.items()]


def gold_passage(title: str, ids: tuple[str, ...], numbers: list[int], context: Context) -> GoldPassage:
    """A gold passage with its text and the supporting sentences in it."""
    sentences = context.get(title, ())
    supporting = (sentences[number] for number in sorted(set(numbers)) if 0 <= number < len(sentences))
    return GoldPassage(title, ids, " ".join(filter(None, sentences)), " ".join(filter(None, supporting)))


def read_triples(data: Mapping[str, Any], line: Line) -> list[Triple]:
    """Evidence as subject, relation, object."""
    triples: list[Triple] = []
    for each in data.get("evidences") or ():
        parts = list(each.values()) if isinstance(each, dict) else each
        if not isinstance(parts, list) or len(parts) != 3 or not all(isinstance(part, str) for part in parts):
            raise line.wrong(f"'evidences' should be triples: subject, relation, object; found {preview(each)}")
        triples.append((parts[0].strip(), parts[1].strip(), parts[2].strip()))
    return triples


def context_passages(line: Line, data: Mapping[str, Any] | None = None) -> Iterator[Passage]:
    """The paragraphs of a row, or of an object in it, as passages."""
    for title, sentences in context_of(line.data if data is None else data, line).items():
        if text := " ".join(filter(None, sentences)):
            yield Passage(title, title, text)


def _pairs(value: Any, columns: tuple[str, ...], name: str, line: Line) -> Iterator[tuple[str, Any]]:
    """Pairs of a title and a value, from a list of pairs or from two columns."""
    pairs: Any = value or []
    if isinstance(value, dict):
        titles = value.get("title") or []
        second = next((value[key] for key in columns if key in value), [None] * len(titles))
        pairs = list(zip(titles, second)) if isinstance(titles, list) and isinstance(second, list) else None
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise line.wrong(f"{name!r} should be pairs that begin with a title; found {preview(value)}")
        yield pair[0], pair[1]
