"""Which sub-question of the gold decomposition a query asks for, however it is worded.

In: a question, a query and what the search returned for it. Out: `MatchedHop`, the number of a hop, or None when the
query asks for none of them. Three things must fit:

- Whom it is about: the query names what the hop is about, that is, the names in its text and the answers it refers to
  by `#1`. A later hop may also be asked by description ("the mentor of the wife of Ada Orm"), without those names.
- What kind of answer it wants: a person, a place, a date, a number, a river ...
- What it says about it: the other words agree with those of the hop, synonyms included (see `words.py`).

Where the words neither agree nor contradict, the effect decides: the search must have found a passage that states the
hop, and the words must not fit another statement of that passage better. A passage often states many facts of one
thing, so that finding it does not by itself prove that the right one was asked for.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.core.answer_metrics import covers, normalize
from stepladder.oracle.decomposition import fill_references, hop_answers, is_conclusion, references, supports
from stepladder.core.trace import Hop, Passage, Question
from stepladder.oracle.lexicon import KIND_OF, STOP_WORDS, WEAK_WORDS, is_familiar, kinds_conflict, same_word, stem
from stepladder.oracle.wording import (
    NAME,
    Wording,
    Words,
    agreement,
    content,
    kind_of_answer,
    mark,
    names_in,
    spelling_of,
    take,
    weight,
    wording,
    words_of,
)

#: Texts ask the same when they share at least this much of their words.
_ENOUGH = 0.5
#: A query is the whole question when they share this much.
_ALL = 0.99


@dataclass(frozen=True, slots=True)
class MatchedHop:
    """The hop that a query asks for."""

    #: From 1.
    hop: int
    #: Whether the query names what the hop is about, rather than describing the way to it.
    named: bool = True


@dataclass(frozen=True, slots=True)
class _Target:
    """A hop, prepared for comparison."""

    number: int
    hop: Hop
    #: The sub-question with its references filled in, normalised.
    text: str
    wording: Wording
    #: Names in its own text.
    names: tuple[Words, ...]
    #: For each hop it refers to: its number and the spellings of its answer.
    refers: tuple[tuple[int, tuple[Words, ...]], ...]

    @property
    def anchors(self) -> list[tuple[Words, ...]]:
        """Everything a query for this hop has to name, each in any of its spellings."""
        return [*((name,) for name in self.names), *(spellings for _, spellings in self.refers)]


class Decomposition:
    """The hops of one question, prepared once, to tell which of them queries ask for."""

    def __init__(self, question: Question) -> None:
        self._targets = [_target(number, hop, question) for number, hop in enumerate(question.hops, start=1)]
        self._searches = sum(not is_conclusion(hop, question) for hop in question.hops)
        self._whole = _stems(words_of(question.text))

    def asked(self, query: str, found: Sequence[Passage]) -> MatchedHop | None:
        """The hop that a query asks for, given what the search returned for it."""
        text = normalize(query)
        for target in self._targets:
            if text == target.text:
                return MatchedHop(target.number)
        words = words_of(query)
        if self._searches > 1 and agreement(_stems(words), self._whole) > _ALL:
            return MatchedHop(len(self._targets), named=False)
        # The last first: a query that describes its way to a hop has the words of the hops before in it, too.
        for target in reversed(self._targets):
            if self._names_it(target, words, found):
                return MatchedHop(target.number)
            if self._describes_it(target, words):
                return MatchedHop(target.number, named=False)
        for target in self._targets:
            if self._hints_at_it(target, query, words, found):
                return MatchedHop(target.number)
        return None

    def adds_nothing(self, text: str, answer: str, number: int) -> bool:
        """Whether a text is an answer, or has it in a sentence of the hop's own words: "She was born in Velm."."""
        if normalize(text) == normalize(answer):
            return True
        marked = mark(words_of(text), (spelling_of(answer),))
        own = {stem(word) for word in words_of(self._targets[number - 1].text)}
        return marked is not None and all(any(same_word(word, other) for other in own) for word in content(marked))

    def _names_it(self, target: _Target, words: Words, found: Sequence[Passage]) -> bool:
        """Whether a query names what the hop is about and asks for the same of it."""
        for spellings in target.anchors:
            marked = mark(words, spellings)
            if marked is None:
                return False
            words = marked
        return _asks_the_same(wording(words), target, found)

    def _describes_it(self, target: _Target, words: Words) -> bool:
        """Whether a query asks for the hop and spells out the way to it, instead of naming what it is about."""
        way = self._way(target, words)
        if way is None or way == [target]:
            return False
        for step in way:
            for spellings in step.anchors:
                words = mark(words, spellings) or words
        asked = wording(words)
        if kinds_conflict(asked.kind, target.wording.kind):
            return False
        if not target.wording.words and (asked.kind is None or asked.kind != target.wording.kind):
            return False
        left, kinds = list(asked.words), {KIND_OF[word] for word in words if word in KIND_OF}
        return all(
            take(step.wording.words, left) >= _ENOUGH * weight(step.wording.words)
            and (step.wording.words or step.wording.kind in kinds)
            for step in way
        )

    def _way(self, target: _Target, words: Words) -> list[_Target] | None:
        """The hop and those before it whose answers the query does not name; None when a name of theirs is missing."""
        if any(mark(words, (name,)) is None for name in target.names):
            return None
        way = [target]
        for number, spellings in target.refers:
            if mark(words, spellings) is None:
                before = self._way(self._targets[number - 1], words)
                if before is None:
                    return None
                way += before
        return way

    def _hints_at_it(self, target: _Target, query: str, words: Words, found: Sequence[Passage]) -> bool:
        """Whether a query gives only a part of a name, such as the surname, and the search found what was meant."""
        if not target.anchors or not supports(target.hop, found):
            return False
        meant = {part for spellings in target.anchors for spelling in spellings for part in spelling}
        if any(word not in meant | STOP_WORDS for name in names_in(query) for word in name):
            return False
        for spellings in target.anchors:
            parts = {part for spelling in spellings for part in spelling} - STOP_WORDS - KIND_OF.keys()
            if parts.isdisjoint(words):
                return False
            words = tuple(NAME if word in parts else word for word in words)
        return _asks_the_same(wording(words), target, found)


def _target(number: int, hop: Hop, question: Question) -> _Target:
    refers = tuple((each, _spellings(question.hops[each - 1])) for each in references(hop.question) if each < number)
    # Some data sets write a subject and a relation: "Green >> performer".
    subject, arrow, relation = hop.question.partition(">>")
    names = (words_of(subject),) if arrow and "#" not in subject else tuple(names_in(hop.question))
    words = tuple(NAME if word.startswith("#") else word for word in words_of(f"{subject} {relation}"))
    for name in names:
        words = mark(words, (name,)) or words
    asks = wording(words)
    if asks.kind is None:
        asks = Wording(asks.words, kind_of_answer(hop.answer))
    text = normalize(fill_references(hop.question, hop_answers(question)))
    return _Target(number, hop, text, asks, names, refers)


def _stems(words: Words) -> Words:
    return tuple(stem(word) for word in words if word not in STOP_WORDS)


def _spellings(hop: Hop) -> tuple[Words, ...]:
    """The names of a hop's answer; beside "Velm" not "the city of Velm", which "the twin city of Velm" has in it."""
    spellings = [spelling_of(text) for text in (hop.answer, *hop.aliases)]

    def only_described(words: Words) -> bool:
        return any(
            words[-len(name) :] == name and all(word in KIND_OF or word == "of" for word in words[: -len(name)])
            for name in spellings
            if len(name) < len(words)
        )

    return tuple(words for words in spellings if not only_described(words))


def _asks_the_same(asked: Wording, target: _Target, found: Sequence[Passage]) -> bool:
    """Whether a query about the right thing asks the same of it as a hop does."""
    wanted = target.wording
    if kinds_conflict(asked.kind, wanted.kind):
        return False
    if not asked.words and asked.kind is not None:
        return asked.kind == wanted.kind or not wanted.words
    shared = agreement(asked.words, wanted.words)
    if shared >= _ENOUGH:
        return True
    return _is_stated(asked.words, target, found, doubtful=shared > 0)


def _is_stated(words: Sequence[str], target: _Target, found: Sequence[Passage], *, doubtful: bool) -> bool:
    """Whether the passages found say in the words of a query what the hop asks, or at least do not speak against it.

    A word that the tables know would have agreed with the hop if it meant the same, so it must be in a clause that
    states the hop's answer. Others get the benefit of the doubt, unless only other clauses of the passage use them.
    """
    strong = [word for word in words if word not in WEAK_WORDS]
    familiar = not doubtful and any(map(is_familiar, strong))
    if familiar and any(map(is_familiar, target.wording.words)):
        return False
    here: set[str] = set()
    elsewhere: set[str] = set()
    stating = [passage for passage in found if supports(target.hop, (passage,))]
    for passage in stating:
        for clause in re.split(r"[.;,](?!\d)| and ", passage.text):
            answers = (target.hop.answer, *target.hop.aliases)
            (here if any(covers(clause, answer) for answer in answers) else elsewhere).update(content(words_of(clause)))

    def used_in(clauses: set[str]) -> bool:
        return any(same_word(word, other) for word in strong for other in clauses)

    if not stating or familiar:
        return bool(stating) and used_in(here)
    return used_in(here) or not used_in(elsewhere)
