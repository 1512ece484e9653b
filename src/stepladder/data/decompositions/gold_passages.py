"""Gold passages as annotated by a data set, independent of its file format, and the names of entities in them.

In: titles, ids and texts. Out: `GoldPassage`s, from which decompositions are derived; normalized names as questions,
titles and facts spell them, and whether two of them match.

    >>> without_suffix("Francis Ford (actor)"), normalized("The Beatles!"), same_name("Ford (actor)", "ford")
    ('Francis Ford', 'beatles', True)
"""

import html
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from stepladder.core.trace import Hop

#: One group of ids per gold passage; any id of a group counts as the passage.
Groups = tuple[tuple[str, ...], ...]

#: Minimum word overlap of two names that may refer to the same entity.
_MIN_OVERLAP = 0.5

_SUFFIX = re.compile(r"\s*\([^()]*\)\s*$")
_WORD = re.compile(r"\w+")
_ARTICLES = frozenset({"the", "a", "an"})


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
    titled = [gold for gold in golds if gold.title == subject]
    if named := titled or [gold for gold in golds if same_name(gold.title, subject)]:
        return named[0]
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


# --- names of entities ---------------------------------------------------------------------------------------


def without_suffix(title: str) -> str:
    """A title without the suffix in brackets, unless it has nothing else."""
    title = html.unescape(title)  # some sets contain "Bang &amp; Olufsen"
    return _SUFFIX.sub("", title).strip() or title.strip()


@lru_cache(maxsize=128)  # few, because texts may be long
def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without accents."""
    if not text.isascii():
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return tuple(_WORD.findall(text.lower()))


def normalized(name: str) -> str:
    """The words of a name, without a leading article."""
    found = words(name)
    return " ".join(found[1:] if len(found) > 1 and found[0] in _ARTICLES else found)


def same_name(one: str, other: str) -> bool:
    """Whether two names are equal except for case, accents, a leading article and a suffix in brackets."""
    name = normalized(without_suffix(one))
    return bool(name) and name == normalized(without_suffix(other))


def overlap(one: str, other: str) -> float:
    """The word overlap of two names (Dice coefficient), from 0 to 1.

    >>> overlap("Boso the Elder", "Boso"), overlap("Ada Orm", "Ena Voss")
    (0.5, 0.0)
    """
    some, others = set(words(without_suffix(one))), set(words(without_suffix(other)))
    shared = len(some & others)
    return 2 * shared / (len(some) + len(others)) if shared else 0.0


def mentions(text: str, name: str) -> bool:
    """Whether a text contains a name, as whole words.

    >>> mentions("Who directed the great adventure in 1918?", "The Great Adventure (1918 film)")
    True
    """
    needle = normalized(without_suffix(name))
    return bool(needle) and f" {needle} " in f" {' '.join(words(text))} "
