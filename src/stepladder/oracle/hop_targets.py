"""The hops of a question, prepared for comparison with queries.

In: a question with its decomposition. Out: one `HopTarget` per hop: the names that a query for it contains, the
relation, the kind of answer, and the words of the whole question.

Some sub-questions leave open which fact is needed (`is_vague`): those that were derived from passages, such as "About
#1: QUESTION" or "What is the film Rain?". The whole question says what is needed then, and the names in it belong to
several hops, so that none of them is required.
"""

import re
from dataclasses import dataclass

from stepladder.core.answer_metrics import normalize
from stepladder.core.trace import Hop, Question
from stepladder.oracle.decomposition import fill_references, hop_answers, is_conclusion, references
from stepladder.oracle.lexicon import KIND_OF, STOP_WORDS
from stepladder.oracle.wording import (
    NAME,
    ORIGIN,
    Wording,
    Words,
    content_words,
    kind_of_answer,
    mask_name,
    may_answer,
    name_words,
    names_in,
    parse_wording,
    question_kind,
    without_subject,
    words_of,
)

#: Answers with more words than this are sentences rather than names.
NAME_WORDS = 8
#: "Which painter is connected with Rain?", as derived from passages.
_CONNECTED = re.compile(r"\bis connected with\b")
#: "What is the film Rain?": asks for anything about it.
_WHAT_IS = re.compile(r"(?:who|what) (?:is|are|was|were)\b", re.IGNORECASE)
#: Comparisons of dates: the values to be looked up are dates.
_IN_TIME = frozenset(
    {"first", "earlier", "earliest", "later", "latest", "before", "after", "older", "oldest", "younger", "newer"}
    | {"recent", "recently"}
)
_IN_SPACE = frozenset(("based", "located", "situated", "headquartered"))


@dataclass(frozen=True, slots=True)
class HopTarget:
    """A hop, prepared for comparison."""

    number: int
    hop: Hop
    #: The sub-question with its references filled in, normalized.
    text: str
    wording: Wording
    #: Names in its own text that a query for it contains.
    names: tuple[Words, ...]
    #: For each hop it refers to: its number and the spellings of its answer.
    references: tuple[tuple[int, tuple[Words, ...]], ...]
    #: Whether the sub-question leaves open which fact is needed.
    is_vague: bool
    #: Whether the answer sums up a passage.
    is_summary: bool
    #: Whether the answer is known before, because it is one of the references: only a description is checked.
    is_known: bool
    #: Stems of the whole question, and the kinds of answers that it names; empty unless vague.
    topic: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()

    @property
    def answers(self) -> tuple[str, ...]:
        """The accepted answers."""
        return (self.hop.answer, *self.hop.aliases)

    @property
    def anchors(self) -> list[tuple[Words, ...]]:
        """All names that a query for this hop must contain, each in any of its spellings."""
        return [*((name,) for name in self.names), *(spellings for _, spellings in self.references)]


def hop_target(number: int, question: Question) -> HopTarget:
    """Prepare a hop, by its number from 1."""
    hop = question.hops[number - 1]
    referred = tuple((each, _spellings(question.hops[each - 1])) for each in references(hop.question) if each < number)
    text = normalize(fill_references(hop.question, hop_answers(question)))
    # Some datasets give a subject and a relation: "Green >> performer".
    subject, arrow, relation = hop.question.partition(">>")
    names = (words_of(subject),) if arrow and "#" not in subject else tuple(names_in(hop.question))
    words = tuple(NAME if word.startswith("#") else word for word in words_of(f"{subject} {relation}"))
    for name in names:
        words = mask_name(words, (name,)) or words
    asked = parse_wording(words)
    if any(not each[0][0].isdigit() for each in names) or referred:  # numbers are not names, if there are others
        names = tuple(name for name in names if not all(word[0].isdigit() for word in name))
    repeats_question = question.text in hop.question and len(question.hops) > 1
    is_sentence = len(normalize(hop.answer).split()) > NAME_WORDS
    compares = is_conclusion(question.hops[-1], question) and question.text in question.hops[-1].question
    is_summary = asked == Wording((), None) and bool(_WHAT_IS.match(hop.question)) and (is_sentence or compares)
    if is_conclusion(hop, question) or not (repeats_question or is_summary or _CONNECTED.search(hop.question)):
        kind = asked.kind if asked.kind != "thing" and may_answer(asked.kind, hop.answer) else None
        asked = Wording(asked.words, kind or kind_of_answer(hop.answer))
        return HopTarget(number, hop, text, asked, names, referred, is_vague=False, is_summary=False, is_known=False)
    whole = words_of(question.text)
    if is_summary:
        whole = without_subject(whole)
    is_known = any(name_words(hop.answer) in spellings for _, spellings in referred) or _repeats(hop, referred)
    kind = None
    if repeats_question and referred and not is_known:
        kind = question_kind(question.text)
        kind = kind if may_answer(kind, hop.answer) else kind_of_answer(hop.answer)
    in_names = {word for name in names_in(question.text) for word in name}
    kinds = {KIND_OF[word] for word in whole if word in KIND_OF and word not in in_names}
    if not _IN_TIME.isdisjoint(whole):
        kinds.add("time")
    if not _IN_SPACE.isdisjoint(whole) or "in" in whole[-3:]:
        kinds.add("place")
    return HopTarget(
        number,
        hop,
        text,
        Wording((), kind),
        () if repeats_question else names,
        referred,
        is_vague=True,
        is_summary=is_summary,
        is_known=is_known,
        topic=frozenset(content_words((*whole, ORIGIN) if "from" in whole else whole)),
        kinds=frozenset(kinds),
    )


def _repeats(hop: Hop, referred: tuple[tuple[int, tuple[Words, ...]], ...]) -> bool:
    """Whether the answer contains that of a reference: "Dirk Werner Nowitzki" for "Dirk Nowitzki"."""
    own = set(words_of(hop.answer)) - STOP_WORDS
    return any(own.issuperset(spelling) for _, spellings in referred for spelling in spellings if spelling)


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
