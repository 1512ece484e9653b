"""Gold passages as annotated by a data set, independent of its file format.

In: titles, ids and texts. Out: `GoldPassage`s, from which decompositions are derived.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from stepladder.core.trace import Hop
from stepladder.data.decompositions.entity_names import overlap, same_name, without_suffix

#: One group of ids per gold passage; any id of a group counts as the passage.
Groups = tuple[tuple[str, ...], ...]

#: Minimum word overlap of two names that may refer to the same entity.
_MIN_OVERLAP = 0.5


@dataclass(frozen=True, slots=True)
class GoldPassage:
    """A gold passage."""

    title: str
    #: All ids that count as this passage.
    ids: tuple[str, ...]
    #: Empty if the text is not available.
    text: str = ""
    #: The sentences marked by the annotation; empty if there are none.
    supporting: str = ""


def gold_groups(golds: Iterable[GoldPassage]) -> Groups:
    """The ids of gold passages, in the form that `Question` uses."""
    return tuple(gold.ids for gold in golds if gold.ids)


def passage_about(subject: str, golds: Sequence[GoldPassage]) -> GoldPassage | None:
    """The gold passage about a subject: the one with that title, or with the most similar one."""
    for gold in golds:
        if gold.title == subject:
            return gold
    for gold in golds:
        if same_name(gold.title, subject):
            return gold
    nearest = max(golds, key=lambda gold: overlap(gold.title, subject), default=None)
    return nearest if nearest is not None and overlap(nearest.title, subject) >= _MIN_OVERLAP else None


def with_aliases(hops: Sequence[Hop], answers: Sequence[str]) -> tuple[Hop, ...]:
    """The hops. If the last one answers the question, it gets the other accepted answers as aliases."""
    if not hops or not any(same_name(hops[-1].answer, answer) for answer in answers):
        return tuple(hops)
    last = hops[-1]
    others = tuple(answer for answer in answers if answer != last.answer)
    return (*hops[:-1], replace(last, aliases=tuple(dict.fromkeys((*last.aliases, *others)))))


def same_entity(one: str, other: str) -> bool:
    """Whether two names probably refer to the same entity: "Francis Ford", "Francis Ford (actor)"."""
    return same_name(one, other) or (
        overlap(one, other) > _MIN_OVERLAP and without_suffix(one)[:1] == without_suffix(other)[:1]
    )
