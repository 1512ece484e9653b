"""Derive decompositions from the texts of gold passages, for sets with no other annotation, such as HotpotQA.

In: a question and its gold passages with their texts. Out: hops; none if they cannot be derived.

A comparison asks about each title, then concludes. A bridge question uses two passages, of which the second contains
the answer. If the first passage mentions the second's title, that title is the answer of the first hop. If only the
second mentions the first, the first hop identifies the entity that the question describes: the first passage's title.
Hops are formulated by templates from the question, the titles in it, and the definitions in the passages.
"""

from collections.abc import Sequence
from itertools import permutations

from stepladder.core.trace import Hop
from stepladder.data.decompositions.english import (
    first_sentence,
    head_noun,
    noun_phrase,
    question_word,
    split_question,
    truncated,
)
from stepladder.data.decompositions.gold_passages import GoldPassage, mentions, same_name, without_suffix, words


def chain_hops(text: str, answers: Sequence[str], golds: Sequence[GoldPassage], kind: str) -> tuple[Hop, ...]:
    """The hops of a question; none if they cannot be derived."""
    if not answers or not golds or not all(gold.ids and gold.text and gold.title for gold in golds):
        return ()
    if kind == "comparison":
        return _comparison(text, answers[0], golds)
    if kind == "bridge":
        return _bridge(text, answers, golds) if len(golds) == 2 else ()
    single = _single_passage(text, answers, golds)
    return (Hop(text, answers[0], single.ids),) if single else ()


def _single_passage(text: str, answers: Sequence[str], golds: Sequence[GoldPassage]) -> GoldPassage | None:
    """The only passage that a one-hop question needs. A second one may be about the answer itself, as in PopQA."""
    named = [gold for gold in golds if mentions(text, gold.title)]
    others = [gold for gold in golds if gold not in named]
    if len(named) != 1 or (len(golds) == 2 and not any(same_name(others[0].title, answer) for answer in answers)):
        return None
    # With two passages, a question must be short enough to ask for a single relation of one entity.
    other_words = len(words(text)) - len(words(without_suffix(named[0].title)))
    return named[0] if len(golds) == 1 or other_words <= 8 else None


# --- Comparisons ----------------------------------------------------------------------------------------


def _comparison(text: str, answer: str, golds: Sequence[GoldPassage]) -> tuple[Hop, ...]:
    hops = [Hop(_what_is(gold, text), _summary(gold), gold.ids) for gold in golds]
    references = " ".join(f"#{number}." for number in range(1, len(hops) + 1))
    return (*hops, Hop(f"{text} {references}", answer))


def _what_is(gold: GoldPassage, text: str) -> str:
    noun = head_noun(gold.text)
    in_question = noun and any(word in (noun, f"{noun}s", f"{noun[:-1]}ies") for word in words(text))
    who = question_word(gold.text)
    return f"{who} is {f'the {noun} ' if in_question else ''}{without_suffix(gold.title)}?"


def _summary(gold: GoldPassage) -> str:
    """The supporting sentences of a passage, else its first sentence."""
    return truncated(gold.supporting or first_sentence(gold.text))


# --- Bridges --------------------------------------------------------------------------------------------


def _bridge(text: str, answers: Sequence[str], golds: Sequence[GoldPassage]) -> tuple[Hop, ...]:
    linked = [(one, other) for one, other in permutations(golds, 2) if _links(one, other) or _links(other, one)]
    paths = [path for path in linked if _has_answer(path[1], answers)]
    if not paths:
        return ()
    first, second = max(paths, key=lambda path: _plausibility(text, answers, *path))
    forward = _links(first, second)
    if all(mentions(text, gold.title) for gold in golds) and not forward:
        return _comparison(text, answers[0], golds)  # the question names both, and there is no bridge
    if not forward and mentions(text, first.title):
        return (Hop(_what_is(first, text), _summary(first), first.ids), Hop(text, answers[0], second.ids))
    bridge = second if forward else first
    find, then = _bridge_questions(text, first, bridge)
    # "Donna Orm, better known as Dee Orm": the title and the answer are two names of one entity.
    is_other_name = second.text.startswith(answers[0]) and not same_name(second.title, answers[0])
    aliases = (answers[0],) if bridge is second and is_other_name else ()
    return (Hop(find, without_suffix(bridge.title), first.ids, aliases), Hop(then, answers[0], second.ids))


def _links(one: GoldPassage, other: GoldPassage) -> bool:
    """Whether a passage mentions the title of another. For "Waterford, New York" the first part is enough."""
    return mentions(one.text, other.title) or mentions(one.text, without_suffix(other.title).partition(",")[0])


def _has_answer(gold: GoldPassage, answers: Sequence[str]) -> bool:
    return any(mentions(f"{gold.title} {gold.text}", answer) for answer in answers)


def _plausibility(text: str, answers: Sequence[str], first: GoldPassage, second: GoldPassage) -> int:
    """A score for the order of two passages."""
    return (
        2 * _links(first, second)
        + 2 * mentions(text, first.title)
        - mentions(text, second.title)
        + 2 * (not _has_answer(first, answers))
        + any(same_name(second.title, answer) for answer in answers)
    )


def _bridge_questions(text: str, first: GoldPassage, bridge: GoldPassage) -> tuple[str, str]:
    phrase, name = noun_phrase(bridge.text) or "one", without_suffix(first.title)
    if not mentions(text, first.title):
        return f"Which {phrase} is meant in the question: {text}", f"About #1: {text}"
    if questions := split_question(text, name, bridge.text, question_word(bridge.text)):
        return questions
    return f"Which {phrase} is connected with {name}?", f"About #1: {text}"
