"""Gold decompositions: resolve references between hops and check which evidence the retrieved passages contain.

In: questions with their hops, and passages. Out: sub-questions with references filled in, and booleans: is a hop a
conclusion, do the passages support a hop, do they contain all evidence. Used by the oracle engine and the gold judge.
Gold passages are recognized in any index (core/questions/gold_matching.py).
"""

import re
from collections.abc import Mapping, Sequence

from stepladder.core.questions.gold_matching import gold_found, hop_found
from stepladder.core.trace import Hop, Passage, Question

_REFERENCE = re.compile(r"#(\d+)")


def references(text: str) -> tuple[int, ...]:
    """The hop numbers that a sub-question refers to, without repeats.

    >>> references("Which city lies in #1 and had #3 as its mayor?")
    (1, 3)
    """
    return tuple(dict.fromkeys(int(number) for number in _REFERENCE.findall(text)))


def fill_references(text: str, answers: Mapping[int, str]) -> str:
    """The sub-question with `#1`, `#2` ... replaced by the answers of those hops. Unknown hops stay as they are.

    >>> fill_references("Where was #1 born?", {1: "Ada Orm"})
    'Where was Ada Orm born?'
    """
    return _REFERENCE.sub(lambda match: answers.get(int(match[1]), match[0]), text)


def is_conclusion(hop: Hop, question: Question) -> bool:
    """Whether a hop needs no search: it has no gold passage, although other hops have."""
    return not hop.passages and any(other.passages for other in question.hops)


def hop_answers(question: Question) -> dict[int, str]:
    """The answer of each hop, keyed by hop number (from 1)."""
    return {number: hop.answer for number, hop in enumerate(question.hops, start=1)}


def answerable(question: Question, found: Sequence[Passage]) -> bool:
    """Whether passages contain all evidence: every gold passage or, without gold passages, every hop or the answer."""
    if question.gold_passages:
        return all(gold_found(question, found))
    if question.hops:
        return all(supports(hop, found) for hop in question.hops)
    return mentions(question.answers, found)


def supports(hop: Hop, found: Sequence[Passage]) -> bool:
    """Whether the passages state the hop's answer: one is a gold passage or, if none is known, contains the answer."""
    if hop.passages:
        return hop_found(hop, found)
    return mentions((hop.answer, *hop.aliases), found)


def mentions(answers: Sequence[str], found: Sequence[Passage]) -> bool:
    """Whether a passage contains one of the answers as whole words."""
    return any(
        re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", f"{passage.title} {passage.text}", re.IGNORECASE)
        for passage in found
        for answer in answers
        if answer.strip()
    )
