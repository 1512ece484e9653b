"""Compare entity names as questions, titles and facts spell them.

In: texts. Out: normalized names, and whether two of them match.

    >>> without_suffix("Francis Ford (actor)"), normalized("The Beatles!"), same_name("Ford (actor)", "ford")
    ('Francis Ford', 'beatles', True)
"""

import html
import re
import unicodedata
from functools import lru_cache

_SUFFIX = re.compile(r"\s*\([^()]*\)\s*$")
_WORD = re.compile(r"\w+")
_ARTICLES = frozenset({"the", "a", "an"})


def without_suffix(title: str) -> str:
    """A title without the suffix in brackets, unless it has nothing else."""
    title = html.unescape(title)  # some sets contain "Bang &amp; Olufsen"
    return _SUFFIX.sub("", title).strip() or title.strip()


@lru_cache(maxsize=1024)
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
