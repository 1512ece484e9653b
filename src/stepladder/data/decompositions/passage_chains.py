"""Decompositions from the texts of gold passages, where nothing else is annotated, as in HotpotQA.

In: a question and its gold passages, with their texts. Out: hops, or none where the texts do not tell how they hang
together.

A comparison asks for each of the titles, then concludes. A bridge goes over two passages, of which the second has the
answer. The first leads to it: it mentions the second's title, which is then the answer of the first hop. Where only the
second mentions the first, the first hop finds out what the question describes, and its answer is the first's title.
Hops are worded by templates from the question, the titles it has in it, and what the passages say the thing is.
"""

from collections.abc import Sequence
from itertools import permutations

from stepladder.core.trace import Hop
from stepladder.data.decompositions.definitions import described, first_sentence, is_person, kind_of_thing, shortened
from stepladder.data.decompositions.entity_names import alike, bare, mentions, words
from stepladder.data.decompositions.gold_passages import Gold
from stepladder.data.decompositions.phrases import taken_apart


def chain_hops(text: str, answers: Sequence[str], golds: Sequence[Gold], kind: str) -> tuple[Hop, ...]:
    """The hops of a question; none where they cannot be told."""
    if not answers or not golds or not all(gold.ids and gold.text and gold.title for gold in golds):
        return ()
    if kind == "comparison":
        return _comparison(text, answers[0], golds)
    if kind == "bridge":
        return _bridge(text, answers, golds) if len(golds) == 2 else ()
    single = _single(text, answers, golds)
    return (Hop(text, answers[0], single.ids),) if single else ()


def _single(text: str, answers: Sequence[str], golds: Sequence[Gold]) -> Gold | None:
    """The one passage that a question of one hop needs: the other is only about the answer itself, as in PopQA."""
    named = [gold for gold in golds if mentions(text, gold.title)]
    others = [gold for gold in golds if gold not in named]
    if len(named) != 1 or (len(golds) == 2 and not any(alike(others[0].title, answer) for answer in answers)):
        return None
    return named[0] if len(golds) == 1 or _is_plain(text, named[0]) else None


def _is_plain(text: str, gold: Gold) -> bool:
    """Whether a question asks for one relation of one thing, and for nothing beside it."""
    return len(words(text)) - len(words(bare(gold.title))) <= 8


# --- Comparisons ----------------------------------------------------------------------------------------


def _comparison(text: str, answer: str, golds: Sequence[Gold]) -> tuple[Hop, ...]:
    hops = [Hop(_what_is(gold, text), _told(gold), gold.ids) for gold in golds]
    found = " ".join(f"#{number}." for number in range(1, len(hops) + 1))
    return (*hops, Hop(f"{text} {found}", answer))


def _what_is(gold: Gold, text: str) -> str:
    kind = kind_of_thing(gold.text)
    said = kind and any(word in (kind, f"{kind}s", f"{kind[:-1]}ies") for word in words(text))
    return f"{'Who' if is_person(gold.text) else 'What'} is {f'the {kind} ' if said else ''}{bare(gold.title)}?"


def _told(gold: Gold) -> str:
    """What the annotation marks in a passage, else how it begins."""
    return shortened(gold.marked or first_sentence(gold.text))


# --- Bridges --------------------------------------------------------------------------------------------


def _bridge(text: str, answers: Sequence[str], golds: Sequence[Gold]) -> tuple[Hop, ...]:
    linked = [(one, other) for one, other in permutations(golds, 2) if _leads(one, other) or _leads(other, one)]
    ways = [way for way in linked if _has_answer(way[1], answers)]
    if not ways:
        return ()
    first, second = max(ways, key=lambda way: _likely(text, answers, *way))
    if all(mentions(text, gold.title) for gold in golds) and not _leads(first, second):
        return _comparison(text, answers[0], golds)  # it names both, and neither leads to the other
    forward = _leads(first, second)
    if not forward and mentions(text, first.title):
        return (Hop(_what_is(first, text), _told(first), first.ids), Hop(text, answers[0], second.ids))
    bridge = second if forward else first
    find, then = _bridge_questions(text, first, bridge)
    return (Hop(find, bare(bridge.title), first.ids), Hop(then, answers[0], second.ids))


def _leads(one: Gold, other: Gold) -> bool:
    """Whether a passage mentions the title of another; of a place "Waterford, New York" its first part will do."""
    return mentions(one.text, other.title) or mentions(one.text, bare(other.title).partition(",")[0])


def _has_answer(gold: Gold, answers: Sequence[str]) -> bool:
    return any(mentions(f"{gold.title} {gold.text}", answer) for answer in answers)


def _likely(text: str, answers: Sequence[str], first: Gold, second: Gold) -> int:
    """How much speaks for going from one passage to the other."""
    return (
        2 * _leads(first, second)
        + 2 * mentions(text, first.title)
        - mentions(text, second.title)
        + 2 * (not _has_answer(first, answers))
        + any(alike(second.title, answer) for answer in answers)
    )


def _bridge_questions(text: str, first: Gold, bridge: Gold) -> tuple[str, str]:
    if not mentions(text, first.title):
        return f"Which {described(bridge.text) or 'one'} is meant in the question: {text}", f"About #1: {text}"
    who = "Who" if is_person(bridge.text) else "What"
    if apart := taken_apart(text, bare(first.title), bridge.text, who):
        return apart
    return f"Which {described(bridge.text) or 'one'} is connected with {bare(first.title)}?", f"About #1: {text}"
