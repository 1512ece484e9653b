"""What an annotation tells about the gold passages of a question, whatever file it comes from.

In: titles, ids, texts. Out: `Gold`, one for each gold passage, which decompositions are made from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepladder.core.trace import Hop
from stepladder.data.decompositions.entity_names import alike, bare, overlap

Groups = tuple[tuple[str, ...], ...]

#: Names that share this much of their words may be the same.
_NEAR = 0.5


@dataclass(frozen=True, slots=True)
class Gold:
    """A gold passage."""

    title: str
    #: All ids that count as it.
    ids: tuple[str, ...]
    #: Empty where the text is not at hand.
    text: str = ""
    #: What the annotation marks in it; empty where it marks nothing.
    marked: str = ""


def groups(golds: Iterable[Gold]) -> Groups:
    """The ids of gold passages, as questions have them."""
    return tuple(gold.ids for gold in golds if gold.ids)


def about(subject: str, golds: Sequence[Gold]) -> Gold | None:
    """The gold passage about something: the one of that title, or of the nearest."""
    for gold in golds:
        if gold.title == subject:
            return gold
    for gold in golds:
        if alike(gold.title, subject):
            return gold
    near = max(golds, key=lambda gold: overlap(gold.title, subject), default=None)
    return near if near is not None and overlap(near.title, subject) >= _NEAR else None


def with_aliases(hops: Sequence[Hop], answers: Sequence[str]) -> tuple[Hop, ...]:
    """The hops, the last of them with the other accepted answers where it gives the answer of the question."""
    if not hops or not any(alike(hops[-1].answer, answer) for answer in answers):
        return tuple(hops)
    last = hops[-1]
    others = tuple(answer for answer in answers if answer != last.answer)
    return (*hops[:-1], Hop(last.question, last.answer, last.passages, tuple(dict.fromkeys((*last.aliases, *others)))))


def same(one: str, other: str) -> bool:
    """Whether two facts are about the same thing: "Francis Ford", "Francis Ford (actor)"."""
    return alike(one, other) or (overlap(one, other) > _NEAR and bare(one)[:1] == bare(other)[:1])
