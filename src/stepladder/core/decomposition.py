"""What a gold decomposition needs, and whether the passages found so far have it.

In: questions with their hops, and passages. Out: sub-questions with their references filled in, and yes or no: is this
hop a conclusion, do these passages state it, do they hold all the question needs. The gold engine plays by these rules
and the gold judge judges by them.
"""

import re
from collections.abc import Mapping, Sequence

from stepladder.core.trace import Hop, Passage, Question

_REFERENCE = re.compile(r"#(\d+)")


def references(text: str) -> tuple[int, ...]:
    """The numbers of the hops that a sub-question refers to, each once.

    >>> references("Which city lies in #1 and had #3 as its mayor?")
    (1, 3)
    """
    return tuple(dict.fromkeys(int(number) for number in _REFERENCE.findall(text)))


def fill_references(text: str, answers: Mapping[int, str]) -> str:
    """The sub-question with `#1`, `#2` ... replaced by the answers of those hops, as far as they are known.

    >>> fill_references("Where was #1 born?", {1: "Ada Orm"})
    'Where was Ada Orm born?'
    """
    return _REFERENCE.sub(lambda match: answers.get(int(match[1]), match[0]), text)


def is_conclusion(hop: Hop, question: Question) -> bool:
    """Whether a hop needs no search: it has no passage, though others have."""
    return not hop.passages and any(other.passages for other in question.hops)


def hop_answers(question: Question) -> dict[int, str]:
    """The answer of every hop, by its number from 1."""
    return {number: hop.answer for number, hop in enumerate(question.hops, start=1)}


def answerable(question: Question, found: Sequence[Passage]) -> bool:
    """Whether passages hold all that the question needs: every gold passage or, where none is known, the answer."""
    if question.gold_passages:
        ids = {passage.id for passage in found}
        return all(not ids.isdisjoint(group) for group in question.gold_passages)
    if question.hops:
        return all(supports(hop, found) for hop in question.hops)
    return mentions(question.answers, found)


def supports(hop: Hop, found: Sequence[Passage]) -> bool:
    """Whether the passages state the hop's answer: by gold id, or by its words where no ids are known."""
    if hop.passages:
        return any(passage.id in hop.passages for passage in found)
    return mentions((hop.answer, *hop.aliases), found)


def mentions(answers: Sequence[str], found: Sequence[Passage]) -> bool:
    """Whether a passage has one of the answers in it, as whole words."""
    return any(
        re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", f"{passage.title} {passage.text}", re.IGNORECASE)
        for passage in found
        for answer in answers
        if answer.strip()
    )
