"""What HotpotQA's way of writing questions has in it: contexts, supporting facts, evidence.

In: an object of a file, in which lists of pairs may also be columns, as in copies that went through a table:

    "context": [["Orla", ["A town.", " It has a bridge."]], ...]  or  {"title": [...], "sentences": [[...], ...]}
    "supporting_facts": [["Orla", 1], ...]                        or  {"title": [...], "sent_id": [...]}
    "evidences": [["Orla", "country", "Velm"], ...]

Out: the paragraphs by title, `Gold` passages, triples. A title stands for one article, so it is the passage's id, too.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stepladder.core.io.jsonl import Line, preview
from stepladder.core.trace import Passage
from stepladder.data.decompositions.gold_passages import Gold
from stepladder.data.decompositions.triples import Triple

Context = dict[str, tuple[str, ...]]


def context_of(data: Mapping[str, Any], line: Line) -> Context:
    """The sentences of every paragraph, by its title; the first where a title comes twice."""
    found: Context = {}
    for title, sentences in _pairs(data.get("context"), ("sentences", "content"), "context", line):
        texts = [sentences] if isinstance(sentences, str) else sentences
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise line.wrong(f"'context' should have a list of sentences for each title; found {preview(sentences)}")
        found.setdefault(title.strip(), tuple(text.strip() for text in texts))
    return found


def facts_of(data: Mapping[str, Any], line: Line) -> dict[str, list[int]]:
    """The numbers of the supporting sentences, by title."""
    found: dict[str, list[int]] = {}
    for title, number in _pairs(data.get("supporting_facts"), ("sent_id",), "supporting_facts", line):
        found.setdefault(title.strip(), []).extend([number] if isinstance(number, int) else [])
    return found


def golds_of(facts: Mapping[str, list[int]], context: Context) -> list[Gold]:
    """The gold passages that supporting facts name."""
    return [gold_of(title, (title,), numbers, context) for title, numbers in facts.items()]


def gold_of(title: str, ids: tuple[str, ...], numbers: list[int], context: Context) -> Gold:
    """A gold passage with its text, and the marked sentences in it."""
    sentences = context.get(title, ())
    marked = (sentences[number] for number in sorted(set(numbers)) if 0 <= number < len(sentences))
    return Gold(title, ids, " ".join(filter(None, sentences)), " ".join(filter(None, marked)))


def triples_of(data: Mapping[str, Any], line: Line) -> list[Triple]:
    """Evidence as subject, relation, object."""
    found: list[Triple] = []
    for each in data.get("evidences") or ():
        parts = list(each.values()) if isinstance(each, dict) else each
        if not isinstance(parts, list) or len(parts) != 3 or not all(isinstance(part, str) for part in parts):
            raise line.wrong(f"'evidences' should be triples: subject, relation, object; found {preview(each)}")
        found.append((parts[0].strip(), parts[1].strip(), parts[2].strip()))
    return found


def passages_of(context: Context) -> Iterator[Passage]:
    """The paragraphs as passages."""
    for title, sentences in context.items():
        if text := " ".join(filter(None, sentences)):
            yield Passage(title, title, text)


def _pairs(value: Any, seconds: tuple[str, ...], name: str, line: Line) -> Iterator[tuple[str, Any]]:
    """Pairs of a title and something, from a list of them or from two columns."""
    pairs: Any = value or []
    if isinstance(value, dict):
        titles = value.get("title") or []
        second = next((value[key] for key in seconds if key in value), [None] * len(titles))
        pairs = list(zip(titles, second)) if isinstance(titles, list) and isinstance(second, list) else None
    for pair in pairs if isinstance(pairs, list) else [None]:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise line.wrong(f"{name!r} should be pairs that begin with a title; found {preview(value)}")
        yield pair[0], pair[1]
