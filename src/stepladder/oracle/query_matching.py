"""Query matching: which sub-question (hop) of the gold decomposition a query asks for, in any wording.

In: a question, a query and the passages retrieved for it. Out: `MatchedHop`, or None if the query asks for no hop. A
query matches a hop if three things agree:

- the entity: the query contains the names in the hop and the answers it refers to by `#1`. A later hop may also be
  asked by description ("the mentor of the wife of Ada Orm") without those names
- the kind of answer: a person, a place, a date, a number, a river ...
- the relation: the other words agree with those of the hop, synonyms included (`lexicon.py`)

If the words neither agree nor contradict, the results decide: the search must have found a passage that states the hop,
and the words must not fit another statement of that passage better. A passage often states many facts about one entity,
so finding it does not prove that the right fact was asked for.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.core.answer_metrics import covers, normalize
from stepladder.core.trace import Hop, Passage, Question
from stepladder.oracle.decomposition import fill_references, hop_answers, is_conclusion, references, supports
from stepladder.oracle.lexicon import KIND_OF, STOP_WORDS, WEAK_WORDS, has_synonyms, kinds_conflict, same_word, stem
from stepladder.oracle.wording import (
    NAME,
    Wording,
    Words,
    content_words,
    kind_of_answer,
    mask_name,
    name_words,
    names_in,
    parse_wording,
    take_matches,
    weight,
    word_overlap,
    words_of,
)

#: Minimum word overlap of texts that ask the same.
_SAME = 0.5
#: Minimum word overlap of a query that repeats the whole question.
_WHOLE_QUESTION = 0.99


@dataclass(frozen=True, slots=True)
class MatchedHop:
    """The hop that a query asks for."""

    #: From 1.
    hop: int
    #: Whether the query names the entity of the hop instead of describing it.
    named: bool = True


@dataclass(frozen=True, slots=True)
class _Target:
    """A hop, prepared for comparison."""

    number: int
    hop: Hop
    #: The sub-question with its references filled in, normalized.
    text: str
    wording: Wording
    #: Names in its own text.
    names: tuple[Words, ...]
    #: For each hop it refers to: its number and the spellings of its answer.
    references: tuple[tuple[int, tuple[Words, ...]], ...]

    @property
    def anchors(self) -> list[tuple[Words, ...]]:
        """All names that a query for this hop must contain, each in any of its spellings."""
        return [*((name,) for name in self.names), *(spellings for _, spellings in self.references)]


class Decomposition:
    """The hops of one question, prepared for matching queries."""

    def __init__(self, question: Question) -> None:
        self._targets = [_target(number, hop, question) for number, hop in enumerate(question.hops, start=1)]
        self._searches = sum(not is_conclusion(hop, question) for hop in question.hops)
        self._whole = _stems(words_of(question.text))

    def match(self, query: str, found: Sequence[Passage]) -> MatchedHop | None:
        """The hop that a query asks for, given the passages retrieved for it."""
        text = normalize(query)
        for target in self._targets:
            if text == target.text:
                return MatchedHop(target.number)
        words = words_of(query)
        if self._searches > 1 and word_overlap(_stems(words), self._whole) > _WHOLE_QUESTION:
            return MatchedHop(len(self._targets), named=False)
        # The last first: a query that describes a hop also contains the words of the hops before it.
        for target in reversed(self._targets):
            if self._is_named(target, words, found):
                return MatchedHop(target.number)
            if self._is_described(target, words):
                return MatchedHop(target.number, named=False)
        for target in self._targets:
            if self._is_partly_named(target, query, words, found):
                return MatchedHop(target.number)
        return None

    def adds_nothing(self, text: str, answer: str, number: int) -> bool:
        """Whether a text is the answer, alone or in a sentence of the hop's own words ("She was born in Velm.")."""
        if normalize(text) == normalize(answer):
            return True
        masked = mask_name(words_of(text), (name_words(answer),))
        own = {stem(word) for word in words_of(self._targets[number - 1].text)}
        return masked is not None and all(
            any(same_word(word, other) for other in own) for word in content_words(masked)
        )

    def _is_named(self, target: _Target, words: Words, found: Sequence[Passage]) -> bool:
        """Whether a query names the entity of the hop and asks for the same relation."""
        for spellings in target.anchors:
            masked = mask_name(words, spellings)
            if masked is None:
                return False
            words = masked
        return _asks_the_same(parse_wording(words), target, found)

    def _is_described(self, target: _Target, words: Words) -> bool:
        """Whether a query asks for the hop and describes its entity by earlier hops instead of naming it."""
        path = self._path(target, words)
        if path is None or path == [target]:
            return False
        for step in path:
            for spellings in step.anchors:
                words = mask_name(words, spellings) or words
        asked = parse_wording(words)
        if kinds_conflict(asked.kind, target.wording.kind):
            return False
        if not target.wording.words and (asked.kind is None or asked.kind != target.wording.kind):
            return False
        left, kinds = list(asked.words), {KIND_OF[word] for word in words if word in KIND_OF}
        return all(
            take_matches(step.wording.words, left) >= _SAME * weight(step.wording.words)
            and (step.wording.words or step.wording.kind in kinds)
            for step in path
        )

    def _path(self, target: _Target, words: Words) -> list[_Target] | None:
        """The hop and the earlier hops whose answers the query does not name; None if one of their names is missing."""
        if any(mask_name(words, (name,)) is None for name in target.names):
            return None
        path = [target]
        for number, spellings in target.references:
            if mask_name(words, spellings) is None:
                before = self._path(self._targets[number - 1], words)
                if before is None:
                    return None
                path += before
        return path

    def _is_partly_named(self, target: _Target, query: str, words: Words, found: Sequence[Passage]) -> bool:
        """Whether a query contains a part of a name, such as the surname, and the search found the hop."""
        if not target.anchors or not supports(target.hop, found):
            return False
        allowed = {part for spellings in target.anchors for spelling in spellings for part in spelling}
        if any(word not in allowed | STOP_WORDS for name in names_in(query) for word in name):
            return False
        for spellings in target.anchors:
            parts = {part for spelling in spellings for part in spelling} - STOP_WORDS - KIND_OF.keys()
            if parts.isdisjoint(words):
                return False
            words = tuple(NAME if word in parts else word for word in words)
        return _asks_the_same(parse_wording(words), target, found)


def _target(number: int, hop: Hop, question: Question) -> _Target:
    referred = tuple((each, _spellings(question.hops[each - 1])) for each in references(hop.question) if each < number)
    # Some datasets give a subject and a relation: "Green >> performer".
    subject, arrow, relation = hop.question.partition(">>")
    names = (words_of(subject),) if arrow and "#" not in subject else tuple(names_in(hop.question))
    words = tuple(NAME if word.startswith("#") else word for word in words_of(f"{subject} {relation}"))
    for name in names:
        words = mask_name(words, (name,)) or words
    asked = parse_wording(words)
    if asked.kind is None:
        asked = Wording(asked.words, kind_of_answer(hop.answer))
    text = normalize(fill_references(hop.question, hop_answers(question)))
    return _Target(number, hop, text, asked, names, referred)


def _stems(words: Words) -> Words:
    return tuple(stem(word) for word in words if word not in STOP_WORDS)


def _spellings(hop: Hop) -> tuple[Words, ...]:
    """The names of a hop's answer: "Velm" without "the city of Velm", which is part of "the twin city of Velm"."""
    spellings = [name_words(text) for text in (hop.answer, *hop.aliases)]

    def is_description(words: Words) -> bool:
        return any(
            words[-len(name) :] == name and all(word in KIND_OF or word == "of" for word in words[: -len(name)])
            for name in spellings
            if len(name) < len(words)
        )

    return tuple(words for words in spellings if not is_description(words))


def _asks_the_same(asked: Wording, target: _Target, found: Sequence[Passage]) -> bool:
    """Whether a query about the right entity asks for the same relation as a hop."""
    wanted = target.wording
    if kinds_conflict(asked.kind, wanted.kind):
        return False
    if not asked.words and asked.kind is not None:
        return asked.kind == wanted.kind or not wanted.words
    overlap = word_overlap(asked.words, wanted.words)
    if overlap >= _SAME:
        return True
    return _is_stated(asked.words, target, found, doubtful=overlap > 0)


def _is_stated(words: Sequence[str], target: _Target, found: Sequence[Passage], *, doubtful: bool) -> bool:
    """Whether the passages state the hop in the words of a query, or at least do not contradict that.

    A word in the lexicon would have agreed with the hop if it meant the same, so it must occur in a clause that states
    the hop's answer. Other words are accepted unless they occur in other clauses of the passage only.
    """
    strong = [word for word in words if word not in WEAK_WORDS]
    in_lexicon = not doubtful and any(map(has_synonyms, strong))
    if in_lexicon and any(map(has_synonyms, target.wording.words)):
        return False
    answer_clauses: set[str] = set()
    other_clauses: set[str] = set()
    stating = [passage for passage in found if supports(target.hop, (passage,))]
    for passage in stating:
        for clause in re.split(r"[.;,](?!\d)| and ", passage.text):
            answers = (target.hop.answer, *target.hop.aliases)
            states_answer = any(covers(clause, answer) for answer in answers)
            (answer_clauses if states_answer else other_clauses).update(content_words(words_of(clause)))

    def used_in(clauses: set[str]) -> bool:
        return any(same_word(word, other) for word in strong for other in clauses)

    if not stating or in_lexicon:
        return bool(stating) and used_in(answer_clauses)
    return used_in(answer_clauses) or not used_in(other_clauses)
