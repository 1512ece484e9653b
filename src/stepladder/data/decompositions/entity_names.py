"""Names as questions, titles and facts spell them, and whether two of them are the same.

In: texts. Out: plain spellings, and yes or no.

    >>> bare("Francis Ford (actor)"), spelling("The Beatles!"), alike("Francis Ford (actor)", "francis ford")
    ('Francis Ford', 'beatles', True)
"""

import html
import re
import unicodedata
from functools import lru_cache

_BRACKET = re.compile(r"\s*\([^()]*\)\s*$")
_WORD = re.compile(r"\w+")
_ARTICLES = frozenset({"the", "a", "an"})


def bare(title: str) -> str:
    """A title without what stands in brackets at its end, unless nothing else is there."""
    title = html.unescape(title)  # some sets have "Bang &amp; Olufsen"
    return _BRACKET.sub("", title).strip() or title.strip()


@lru_cache(maxsize=1024)
def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without accents."""
    if not text.isascii():
        text = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return tuple(_WORD.findall(text.lower()))


def spelling(name: str) -> str:
    """A name in plain words, without an article in front."""
    found = words(name)
    return " ".join(found[1:] if len(found) > 1 and found[0] in _ARTICLES else found)


def alike(one: str, other: str) -> bool:
    """Whether two names are the same but for case, accents, an article and a bracketed suffix."""
    return bool(spelling(bare(one))) and spelling(bare(one)) == spelling(bare(other))


def overlap(one: str, other: str) -> float:
    """How far two names share their words, from 0 to 1.

    >>> overlap("Boso the Elder", "Boso"), overlap("Ada Orm", "Ena Voss")
    (0.5, 0.0)
    """
    some, others = set(words(bare(one))), set(words(bare(other)))
    shared = len(some & others)
    return 2 * shared / (len(some) + len(others)) if shared else 0.0


def mentions(text: str, name: str) -> bool:
    """Whether a text has a name in it, as whole words.

    >>> mentions("Who directed the great adventure in 1918?", "The Great Adventure (1918 film)")
    True
    """
    wanted = spelling(bare(name))
    return bool(wanted) and f" {wanted} " in f" {' '.join(words(text))} "
