"""Distances in the graph of Atlas's facts: how many facts are between an article and the answer of a question.

In: a question of Atlas. Out: for every article, by the id of its passage, its distance to the nearest article that
states each part of the answer: 0 for those articles themselves. A question that compares two values has two parts. The
world is generated again from the id of the question, with the same facts; other names do not matter.
"""

import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Hop, Question
from stepladder.data.atlas.world import World

_QUESTION_ID = re.compile(r"(atlas-(\d+)-(\d+))-[a-z]+-\d+")
_REFERENCE = re.compile(r"#(\d+)")


def is_from_atlas(question: Question) -> bool:
    """Whether a question is one of Atlas's, whose facts are known."""
    return _QUESTION_ID.fullmatch(question.id) is not None and any(hop.passages for hop in question.hops)


def distances_to_answer(question: Question) -> Mapping[str, tuple[int | None, ...]]:
    """By the id of an article its distance to each part of the answer; None if no path leads there."""
    match = _QUESTION_ID.fullmatch(question.id)
    if match is None or not is_from_atlas(question):
        raise StepladderError(f"question {question.id!r} is not one of Atlas's, so nothing is known of its entities")
    return _distances(match[1], int(match[2]), int(match[3]), answer_articles(question))


def answer_articles(question: Question) -> tuple[tuple[str, ...], ...]:
    """The articles that state the answer; of a conclusion those that state what it is drawn from, in parts."""
    return _articles(question.hops[-1], question.hops)


def _articles(hop: Hop, hops: Sequence[Hop]) -> tuple[tuple[str, ...], ...]:
    if hop.passages:
        return (hop.passages,)
    parts = [_articles(hops[int(number) - 1], hops) for number in dict.fromkeys(_REFERENCE.findall(hop.question))]
    return tuple(dict.fromkeys(part for each in parts for part in each))


@lru_cache(maxsize=32)  # as many questions as an update may have; each knows all articles
def _distances(
    world: str, articles: int, seed: int, parts: tuple[tuple[str, ...], ...]
) -> dict[str, tuple[int | None, ...]]:
    neighbors = _neighbors(articles, seed)
    places = [[int(passage.removeprefix(f"{world}-")) for passage in part] for part in parts]
    found = [_breadth_first(neighbors, part) for part in places]
    return {f"{world}-{index:06d}": tuple(each.get(index) for each in found) for index in range(len(neighbors))}


@lru_cache(maxsize=2)
def _neighbors(articles: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """For every entity those that a fact connects with it, in either direction."""
    facts = World(articles, seed).facts
    found: list[set[int]] = [set() for _ in facts]
    for subject, own in enumerate(facts):
        for target in own.values():
            if isinstance(target, int):
                found[subject].add(target)
                found[target].add(subject)
    return tuple(tuple(sorted(each)) for each in found)


def _breadth_first(neighbors: Sequence[Sequence[int]], starts: Collection[int]) -> dict[int, int]:
    """The number of facts from the nearest of the starts, for every entity that a path leads to."""
    distances = dict.fromkeys(starts, 0)
    waiting = deque(starts)
    while waiting:
        here = waiting.popleft()
        for other in neighbors[here]:
            if other not in distances:
                distances[other] = distances[here] + 1
                waiting.append(other)
    return distances
