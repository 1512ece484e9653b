"""The lexicon of query matching: synonyms of relation words, and kinds of answers.

In: `lexicon.yaml`. Out: tables for `query_matching.py`: relation words with the same meaning (`same_word`), nouns that
name a kind of answer (`KIND_OF`), and kinds that exclude each other (`kinds_conflict`). The tables cover the relations
that encyclopedias and multi-hop datasets ask about; any other word equals only its own stem.
"""

from functools import lru_cache
from pathlib import Path

import Stemmer

from stepladder.core.io.yaml_tables import read_table

_STEMMER = Stemmer.Stemmer("english")
_TABLE = read_table(Path(__file__).with_suffix(".yaml"))


_known_stem = lru_cache(maxsize=65_536)(_STEMMER.stemWord)


def stem(word: str) -> str:
    """The Snowball stem of a lower-case word. Long ones are not cached: policies may write anything."""
    return str(_known_stem(word) if len(word) <= 40 else _STEMMER.stemWord(word))


def _listed(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words without information about the relation. The kind of answer already shows that a place is asked for.
STOP_WORDS = _listed(_TABLE["stop_words"])

#: Words that many relations share; they count half.
WEAK_WORDS = frozenset(map(stem, _listed(_TABLE["weak_words"])))

#: Stems of relations that differ from each other.
_RELATIONS = frozenset(stem(word) for family in _TABLE["families"] for word in family.split())

_MEMBERSHIPS: dict[str, frozenset[int]] = {}
for _number, _family in enumerate([*_TABLE["families"], *_TABLE["related"]]):
    for _word in map(stem, _family.split()):
        _MEMBERSHIPS[_word] = _MEMBERSHIPS.get(_word, frozenset()) | {_number}

#: Minimum length of a word that may be the first part of another: torch, torchbearer.
_COMPOUND_PART = 5

#: Compounds of two words, one of them a kind of answer.
COMPOUNDS: dict[str, tuple[str, ...]] = {word: tuple(parts) for word, parts in _TABLE["compounds"].items()}
#: Two words that mean one: "passed away".
PHRASES: dict[tuple[str, ...], str] = {tuple(words.split()): word for words, word in _TABLE["phrases"].items()}


def is_relation(word: str) -> bool:
    """Whether a stem names a relation that differs from all others in the table."""
    return word in _RELATIONS


def is_known(word: str) -> bool:
    """Whether a stem is in the table of synonyms."""
    return word in _MEMBERSHIPS


def same_word(one: str, other: str) -> bool:
    """Whether two stems mean the same relation.

    >>> same_word(stem("born"), stem("birth")), same_word(stem("born"), stem("died"))
    (True, False)
    >>> same_word(stem("torch"), stem("torchbearer"))
    True
    """
    if one == other or not _MEMBERSHIPS.get(one, frozenset()).isdisjoint(_MEMBERSHIPS.get(other, frozenset())):
        return True
    short, long = sorted((one, other), key=len)
    return len(short) >= _COMPOUND_PART and long.startswith(short)


_ROLES = """founder director author writer publisher composer producer performer singer painter architect designer
builder captain coach mayor president rector mentor spouse husband wife father mother"""

_KIND_NOUNS: dict[str, str] = {"who": _ROLES, **_TABLE["kinds"]}

#: A noun (in singular or plural) to the kind of thing it names.
KIND_OF: dict[str, str] = {
    form: kind
    for kind, nouns in _KIND_NOUNS.items()
    for noun in nouns.split()
    for form in (noun, f"{noun}s", f"{noun[:-1]}ies")
}

#: Nouns that name a kind and a relation at once.
RELATION_NOUNS = _listed(f"population height length size label {_ROLES}")

_ORGANISATIONS = frozenset({"organisation", "company", "university", "club", "museum", "band"})
_PLACES = _listed("where place city country state county continent river mountain bridge")
_PLACES |= _ORGANISATIONS - {"band"}
#: General kinds, and the specific ones that each includes.
_INCLUDES: dict[str, frozenset[str]] = {
    "who": frozenset({"person", "country"}) | _ORGANISATIONS,
    "organisation": _ORGANISATIONS,
    "thing": _listed("film book album painting band ship bridge mountain river reason") | _ORGANISATIONS,
    "where": _PLACES,
    "place": _PLACES,
}


def kinds_conflict(one: str | None, other: str | None) -> bool:
    """Whether no answer can be of both kinds. None is any kind.

    >>> kinds_conflict("where", "city"), kinds_conflict("where", "time"), kinds_conflict("river", "city")
    (False, True, True)
    """
    if one is None or other is None or one == other:
        return False
    return other not in _INCLUDES.get(one, frozenset()) and one not in _INCLUDES.get(other, frozenset())
