"""Query matching: which hops of the gold decomposition a query asks for, in any wording.

In: a question, a query and the passages retrieved for it. Out: `MatchedHop`s, the likeliest first; none if the query
asks for no hop. A query matches a hop if two things agree:

- the entity: the query contains the names in the hop and the answers it refers to by `#1`, in full or in part (the
  surname). A later hop may also be asked by description ("the mentor of the wife of Ada Orm") without those names
- the fact that is asked for (`relation_matching.py`)

A name in part, or only some of the names of a sub-question (its own or those it refers to), count if the search has
found the gold passage.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from stepladder.core.answer_metrics import normalize
from stepladder.core.trace import Passage, Question
from stepladder.oracle.decomposition import is_conclusion, supports
from stepladder.oracle.hop_targets import HopTarget, hop_target
from stepladder.oracle.lexicon import KIND_OF, STOP_WORDS, is_known, kinds_conflict, same_word, stem
from stepladder.oracle.relation_matching import SAME, asks_same, same_words
from stepladder.oracle.wording import (
    NAME,
    Wording,
    Words,
    content_words,
    mask_name,
    name_words,
    names_in,
    parse_wording,
    take_matches,
    weight,
    word_overlap,
    words_of,
)

#: Minimum word overlap of a query that asks the whole question at once.
_WHOLE_QUESTION = 0.99


@dataclass(frozen=True, slots=True)
class MatchedHop:
    """A hop that a query asks for."""

    #: From 1.
    hop: int
    #: Whether the query names the entity of the hop instead of describing it.
    named: bool = True
    #: Whether the query repeats the words of the whole question.
    whole: bool = False
    #: Whether it found the hop's passage without the answers that the hop refers to.
    unaided: bool = False


class Decomposition:
    """The hops of one question, prepared for matching queries."""

    def __init__(self, question: Question) -> None:
        self._targets = [hop_target(number, question) for number in range(1, len(question.hops) + 1)]
        self._searches = sum(not is_conclusion(hop, question) for hop in question.hops)
        self._whole = _stems(words_of(question.text))
        texts = (question.text, *(text for hop in question.hops for text in (hop.question, hop.answer, *hop.aliases)))
        #: The words that the question and its hops use, such as names.
        self._context = frozenset(word for text in texts for word in words_of(text))

    def matches(self, query: str, found: Sequence[Passage]) -> list[MatchedHop]:
        """The hops that a query asks for, given the passages retrieved for it."""
        text = normalize(query)
        for target in self._targets:
            if text == target.text:
                return [MatchedHop(target.number)]
        words = words_of(query)
        stems = _stems(words)
        if self._searches > 1 and word_overlap(stems, self._whole) > _WHOLE_QUESTION:
            return [MatchedHop(len(self._targets), named=False, whole=sorted(stems) == sorted(self._whole))]
        names = {word for name in names_in(query) for word in name}
        gold = (passage for passage in found if any(supports(target.hop, (passage,)) for target in self._targets))
        titles = {word for passage in gold for word in words_of(passage.title)} if names - self._context else set()
        return list(dict.fromkeys(self._matches(_Query(query, words, names, names & (self._context | titles), found))))

    def _matches(self, query: "_Query") -> Iterator[MatchedHop]:
        # The last first: a query that describes a hop also contains the words of the hops before it.
        for target in reversed(self._targets):
            if self._is_named(target, query):
                yield MatchedHop(target.number)
            elif self._is_named(target, query, unaided=True):
                yield MatchedHop(target.number, unaided=True)
            elif self._is_described(target, query):
                yield MatchedHop(target.number, named=False)
        for target in self._targets:
            if self._is_partly_named(target, query):
                yield MatchedHop(target.number)

    def follows(self, query: str, claims: Mapping[int, Sequence[str]], unplaced: Sequence[str]) -> int | None:
        """The hop that a query asks for about something that was claimed instead of a right answer.

        `claims`: wrong answers by the number of their hop. `unplaced`: answers to queries for no hop.
        """
        words = words_of(query)
        for target in reversed(self._targets):
            rest, claimed = words, False
            for number, spellings in target.references:
                masked = mask_name(rest, [name_words(text) for text in (*claims.get(number, ()), *unplaced)])
                claimed |= masked is not None
                masked = masked or mask_name(rest, spellings)
                if masked is None:
                    break
                rest = masked
            else:
                for name in target.names:
                    rest = mask_name(rest, (name,)) or rest
                asked = parse_wording(rest)
                if claimed and (same_words(asked, target) or asked == Wording((), None)):
                    return target.number
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

    def _is_named(self, target: HopTarget, query: "_Query", *, unaided: bool = False) -> bool:
        """Whether a query names the entity of the hop and asks for the same fact.

        `unaided`: by the names in the sub-question alone ("the CAB format" for "the CAB format of #2").
        """
        words, missing = query.words, 0
        for number, spellings in enumerate(target.anchors):
            masked = mask_name(words, spellings)
            if masked is None:
                if number >= len(target.names) and not unaided:
                    return False
                missing += 1
            else:
                words = masked
        if missing and (missing == len(target.anchors) or not supports(target.hop, query.found)):
            return False
        if unaided and (target.is_vague or not target.names or not target.hop.passages):
            return False
        if not target.anchors and not self._shares_topic(target, query):
            return False
        return asks_same(query.wording(words, target), target, query.found)

    def _shares_topic(self, target: HopTarget, query: "_Query") -> bool:
        """Whether a query for an entity that only the whole question describes uses its words, and finds it."""
        return not target.is_vague or (
            supports(target.hop, query.found) and not target.topic.isdisjoint(content_words(query.words))
        )

    def _is_described(self, target: HopTarget, query: "_Query") -> bool:
        """Whether a query asks for the hop and describes its entity by earlier hops instead of naming it."""
        words = query.words
        path = self._path(target, words)
        if path is None or path == [target]:
            return False
        for step in path:
            for spellings in step.anchors:
                words = mask_name(words, spellings) or words
        asked = parse_wording(words)
        if kinds_conflict(asked.kind, target.wording.kind):
            return False
        if target.is_vague:
            return asked.kind == target.wording.kind and same_words(query.wording(words, target), target)
        if not target.wording.words and (asked.kind is None or asked.kind != target.wording.kind):
            return False
        left, kinds = list(asked.words), {KIND_OF[word] for word in words if word in KIND_OF}
        return all(
            take_matches(step.wording.words, left) >= SAME * weight(step.wording.words)
            and (step.wording.words or step.is_vague or step.wording.kind in kinds)
            for step in path
        )

    def _path(self, target: HopTarget, words: Words) -> list[HopTarget] | None:
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

    def _is_partly_named(self, target: HopTarget, query: "_Query") -> bool:
        """Whether a query contains a part of a name, such as the surname, and nothing of another name."""
        if not target.anchors:
            return False
        allowed = {part for spellings in target.anchors for spelling in spellings for part in spelling}
        # Other names of the question may be part of a vague sub-question, else they belong to other hops.
        allowed |= STOP_WORDS | (query.known_names if target.is_vague and target.references else set())
        if any(word not in allowed for name in names_in(query.text) for word in name):
            return False
        words = query.words
        for spellings in target.anchors:
            parts = {part for spelling in spellings for part in spelling} - STOP_WORDS - KIND_OF.keys()
            if parts.isdisjoint(words):
                return False
            words = tuple(NAME if word in parts else word for word in words)
        asked = query.wording(words, target)
        if supports(target.hop, query.found):
            return asks_same(asked, target, query.found)
        # Without the passage, a word in lower case may be the rest of another name.
        return all(map(is_known, asked.words)) and same_words(asked, target)


@lru_cache(maxsize=512)
def decomposition(question: Question) -> Decomposition:
    """The hops of a question, prepared once for all its episodes."""
    return Decomposition(question)


@dataclass(frozen=True, slots=True)
class _Query:
    """A query and what was retrieved for it."""

    text: str
    words: Words
    #: Words of its names, and those of them that the question, its hops or the titles of the passages use.
    names: set[str]
    known_names: set[str]
    found: Sequence[Passage]

    def wording(self, masked: Words, target: HopTarget) -> Wording:
        """What the query asks for, without its names. If it has no other words, unknown names may be the relation."""
        asked = parse_wording(masked)
        for names in (self.names, self.known_names):
            others = {stem(word) for word in names}.difference(target.wording.words, target.topic)
            words = tuple(word for word in asked.words if word not in others)
            if words or asked.kind is not None:
                return Wording(words, asked.kind)
        return Wording((), asked.kind)


def _stems(words: Words) -> Words:
    return tuple(stem(word) for word in words if word not in STOP_WORDS)
