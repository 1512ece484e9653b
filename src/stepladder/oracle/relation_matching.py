"""Relation matching: does a query about the right entity ask for the fact that a hop needs?

In: the wording of a query with its names masked, a `HopTarget`, and the passages retrieved for the query. Out: a
boolean. Three things are compared, in this order:

- the kind of answer: a person, a place, a date, a number, a river ... A kind that the answer cannot be of is refused
- the words of the relation, synonyms included (`lexicon.py`): those of the sub-question or, if that is vague, of the
  whole question
- the gold passage: words that neither agree nor contradict are looked up in the statement of the answer. The query
  may use its words, but not words that occur in other statements of the passage only: a passage often states many
  facts about one entity, so finding it does not prove that the right fact was asked for
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepladder.core.answer_metrics import covers
from stepladder.core.trace import Passage
from stepladder.oracle.decomposition import supports
from stepladder.oracle.hop_targets import NAME_WORDS, HopTarget
from stepladder.oracle.lexicon import KIND_OF, WEAK_WORDS, is_relation, kinds_conflict, same_word, stem
from stepladder.oracle.wording import ORIGIN, Wording, content_words, may_answer, word_overlap, words_of

#: Minimum word overlap of texts that ask the same.
SAME = 0.5
_SENTENCE = re.compile(
    r"(?<![A-Z]\.)(?<!\b(?:Dr|Mr|Ms|St|Jr|Sr|No|Co)\.)(?<!\b(?:Mrs|Inc|Ltd)\.)(?<=[.!?;])\s+(?=[\"“'(A-Z])"
)
#: Kinds of places that are not organizations.
_REGIONS = frozenset({"place", "city", "country", "state", "county", "continent"})
_CLAUSE = re.compile(r"[.;,](?!\d)| and ")


def asks_same(asked: Wording, target: HopTarget, found: Sequence[Passage]) -> bool:
    """Whether a query about the right entity asks for the fact of a hop."""
    if conflicts(asked, target):
        return False
    return _fits_question(asked, target, found) if target.is_vague else _fits_hop(asked, target, found)


def conflicts(asked: Wording, target: HopTarget) -> bool:
    """Whether the answer of the hop cannot be of the kind that is asked for."""
    if kinds_conflict(asked.kind, target.wording.kind):
        return True
    if target.is_known:  # a description may mention anything; a number only if all the rest of the query agrees
        return asked.kind == "quantity" and _share(_strong(asked.words), target.topic) < 1
    is_sentence = target.is_summary or len(target.hop.answer.split()) > NAME_WORDS
    return not is_sentence and not any(may_answer(asked.kind, each) for each in target.answers)


def same_words(asked: Wording, target: HopTarget) -> bool:
    """Whether the words alone show that a query asks for the fact of a hop."""
    if conflicts(asked, target):
        return False
    strong = _strong(asked.words)
    if target.is_vague:
        return bool(strong) and _share(strong, target.topic) >= SAME
    if not strong and asked.kind is not None:
        return asked.kind == target.wording.kind or not _strong(target.wording.words)
    return word_overlap(asked.words, target.wording.words) >= SAME


def _fits_hop(asked: Wording, target: HopTarget, found: Sequence[Passage]) -> bool:
    """Whether a query asks for the relation of a sub-question that names one."""
    wanted = target.wording
    strong = _strong(asked.words)
    if not strong and asked.kind is not None:
        return asked.kind == wanted.kind or not _strong(wanted.words) or asked.kind in _answer_kinds(target)
    overlap = word_overlap(asked.words, wanted.words)
    if overlap >= SAME:
        return True
    statement = _statement(target, found)
    if statement is None:
        return False
    same_kind = asked.kind is None or wanted.kind is None or asked.kind == wanted.kind
    if not _answer_words(target).isdisjoint(strong):
        return same_kind
    relations = [] if overlap else [word for word in strong if is_relation(word)]
    contradicts = bool(relations) and any(map(is_relation, wanted.words))
    if _uses(strong, statement.clause):
        return same_kind and (not contradicts or None not in (asked.kind, wanted.kind))
    if relations:
        others = [word for word in strong if word not in relations]
        return same_kind and not contradicts and _uses(others, statement.sentence)
    return same_kind and (_uses(strong, statement.sentence) or not _uses(strong, statement.others))


def _fits_question(asked: Wording, target: HopTarget, found: Sequence[Passage]) -> bool:
    """Whether a query asks for what the whole question needs, for a hop whose sub-question is vague."""
    strong = _strong(asked.words)
    if strong == [ORIGIN] and target.is_summary and asked.kind is not None:  # "Where is it from?"
        from_a_country = asked.kind != "time" and "time" not in target.kinds and _uses(strong, target.topic)
        return from_a_country or _names_kind(target, asked.kind)
    if not strong:
        if asked.kind is None:
            return supports(target.hop, found)
        return asked.kind == target.wording.kind or _names_kind(target, asked.kind)
    if _share(strong, target.topic) >= SAME:
        return True
    if target.is_known:
        return False
    names_relation = any(map(is_relation, target.topic))
    if target.is_summary and asked.kind == "time" and "time" in target.kinds and not names_relation:
        return True  # "Which came first?" asks for any date
    asks_relation = any(map(is_relation, strong))
    statement = _statement(target, found)
    if statement is None or (asks_relation and names_relation):
        return False
    if not target.is_summary and _share(strong, target.topic | statement.sentence) >= SAME:
        return True
    if asks_relation or _uses(strong, statement.others):
        return False
    if asked.kind is None:
        return not names_relation
    return asked.kind == target.wording.kind or (target.is_summary and _names_kind(target, asked.kind))


def _names_kind(target: HopTarget, kind: str) -> bool:
    """Whether the whole question names a kind of answer, or a kind of place if a place is asked for."""
    if kind in target.kinds:
        return True
    asks_place = kind in _REGIONS and "place" in target.kinds
    return asks_place or (kind in ("where", "place") and not _REGIONS.isdisjoint(target.kinds))


def _answer_kinds(target: HopTarget) -> frozenset[str]:
    """The kinds that the answer names: a university if it is "University of Orm"."""
    return frozenset(KIND_OF[word] for answer in target.answers for word in words_of(answer) if word in KIND_OF)


# --- the gold passage ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Statement:
    """Stems of a gold passage: of the clause and the sentence that state the answer, and of all others."""

    clause: frozenset[str]
    sentence: frozenset[str]
    others: frozenset[str]


def _statement(target: HopTarget, found: Sequence[Passage]) -> _Statement | None:
    """How the gold passages among those found state the answer; None without any."""
    stating = [passage for passage in found if supports(target.hop, (passage,))]
    if not stating:
        return None
    clause: set[str] = set()
    sentence: set[str] = set()
    others: set[str] = set()
    own = _answer_words(target).union(stem(word) for names in target.anchors for name in names for word in name)
    for passage in stating:
        for each in _SENTENCE.split(passage.text):
            states = _states(each, target)
            for part in _CLAUSE.split(each):
                words = [word for word in content_words(words_of(part)) if word not in own]
                if _states(part, target):
                    clause.update(words)
                (sentence if states else others).update(words)
    return _Statement(frozenset(clause), frozenset(sentence), frozenset(others))


def _answer_words(target: HopTarget) -> frozenset[str]:
    """Stems of the answer if it is a name: "House of Orm" answers "Which house ...?"."""
    if target.is_summary or len(target.hop.answer.split()) > NAME_WORDS:
        return frozenset()
    return frozenset(word for answer in target.answers for word in content_words(words_of(answer)))


def _states(text: str, target: HopTarget) -> bool:
    """Whether a text states the answer. If the answer is a sentence, the text must be a part of it."""
    if target.is_summary or len(target.hop.answer.split()) > NAME_WORDS:
        return bool(text.strip()) and covers(target.hop.answer, text.strip(" ."))
    return any(covers(text, answer) for answer in target.answers)


# --- words -----------------------------------------------------------------------------------------------------


def _strong(words: Iterable[str]) -> list[str]:
    return [word for word in words if word not in WEAK_WORDS]


def _uses(words: Iterable[str], others: Iterable[str]) -> bool:
    return any(same_word(word, other) for word in words for other in others)


def _share(words: Sequence[str], others: Iterable[str]) -> float:
    """The share of words that occur among others, as such or as synonyms."""
    return sum(_uses((word,), others) for word in words) / len(words) if words else 0.0
