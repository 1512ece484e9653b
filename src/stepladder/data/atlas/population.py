"""Generate the entities of a world, before they have facts, and their names.

In: the number of articles, a seeded generator, a `Namer`. Out: a list of `Draft` (kind, home country, role, year) and a
list of `Naming` (name, aliases, namesakes) for the same entities. Three features make searching harder: aliases,
homonyms, and near-duplicates, which are similar entities whose names differ in one vowel.

Names are built from pronounceable invented words in eight styles. Every invented word is used for one entity only,
except given and family names, which people share on purpose. `Namer.words` has all invented words, so that another
world can avoid them.
"""

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from stepladder.core.io.yaml_tables import read_table
from stepladder.data.atlas.catalogue import TYPES, WORDING_WORDS
from stepladder.data.atlas.literals import MONTHS


@dataclass(frozen=True, slots=True)
class Style:
    """The sounds of an invented language: a word is onset, vowel, (link, vowel) once or twice, ending."""

    onsets: tuple[str, ...]
    vowels: tuple[str, ...]
    links: tuple[str, ...]
    endings: tuple[str, ...]
    country_endings: tuple[str, ...]


_TABLE = read_table(Path(__file__).with_name("tables") / "names.yaml")

STYLES = tuple(Style(**{part: tuple(sounds.split()) for part, sounds in row.items()}) for row in _TABLE["styles"])

#: What follows the invented word in the name of a company, by industry.
COMPANY_SUFFIXES: dict[str, tuple[str, ...]] = {name: tuple(row) for name, row in _TABLE["company_suffixes"].items()}

_PATTERNS: dict[str, tuple[str, ...]] = {name: tuple(row) for name, row in _TABLE["patterns"].items()}

#: Words of names, industries and dates that are not invented.
_FIXED_WORDS: frozenset[str] = frozenset(
    word.lower()
    for texts in (*_PATTERNS.values(), *COMPANY_SUFFIXES.values(), MONTHS)
    for text in texts
    for word in text.split()
)

_RESERVED_WORDS = WORDING_WORDS | _FIXED_WORDS | frozenset(_TABLE["english"].split())


class Namer:
    """Invents words and builds names from them; never the same word twice."""

    def __init__(self, rng: random.Random, avoid: Collection[str] = ()) -> None:
        self.words: set[str] = set()
        self._rng = rng
        self._avoid = _RESERVED_WORDS.union(word.lower() for word in avoid)

    def word(self, style: int, country: bool = False) -> str:
        """A new capitalized word of four to ten letters in a style."""
        sounds, rng = STYLES[style], self._rng
        while True:
            text = rng.choice(sounds.onsets) + rng.choice(sounds.vowels) + rng.choice(sounds.links)
            if rng.random() < 0.35:
                text += rng.choice(sounds.vowels) + rng.choice(sounds.links)
            ending = rng.choice(sounds.country_endings if country else sounds.endings)
            if ending[0] not in "aeiouy":
                text += rng.choice(sounds.vowels)
            text += ending
            if 4 <= len(text) <= 10 and self._take(text):
                return text.capitalize()

    def near(self, word: str) -> str:
        """A new word that differs from another in one vowel."""
        rng, lower = self._rng, word.lower()
        vowels = [index for index, letter in enumerate(lower) if letter in "aeiouy" and index > 0]
        for _ in range(40):
            index = rng.choice(vowels)
            text = lower[:index] + rng.choice("aeiou") + lower[index + 1 :]
            if self._take(text):
                return text.capitalize()
        return self.word(0)

    def contraction(self, word: str, style: int) -> str:
        """A new short form of a word: its first letters with another ending."""
        while True:
            text = word[:3].lower() + self.word(style)[-3:]
            if self._take(text):
                return text.capitalize()

    def named(self, kind: str, word: str, industry: str = "") -> str:
        """The full name of an entity of a type, built around an invented word."""
        if kind == "company":
            return f"{word} {self._rng.choice(COMPANY_SUFFIXES[industry])}"
        return self._rng.choice(_PATTERNS[kind]).format(word)

    def _take(self, text: str) -> bool:
        """Mark a word as used; false if it was used before or is to be avoided."""
        if text in self.words or text in self._avoid:
            return False
        self.words.add(text)
        return True


#: Occupations with their weights. Relations select people by occupation.
OCCUPATIONS: dict[str, int] = _TABLE["occupations"]
#: Industries with their weights. Relations select publishers, record labels and shipyards from the first three.
INDUSTRIES: dict[str, int] = dict(zip(COMPANY_SUFFIXES, (25, 18, 17, 10, 10, 8, 6, 6)))

ALIAS_SHARE = 0.12
NEAR_DUPLICATE_SHARE = 0.03
#: Share of the entities of a type that have the name of an entity of another type, by both types.
HOMONYMS: dict[tuple[str, str], float] = {
    ("river", "city"): 0.12,
    ("band", "city"): 0.12,
    ("ship", "river"): 0.12,
    ("film", "book"): 0.10,
}
#: Share of the entities of a type that have the name of another of the same type.
NAMESAKES: dict[str, float] = {"person": 0.02, "city": 0.03}


@dataclass(frozen=True, slots=True)
class Draft:
    """An entity before it has a name or facts."""

    kind: str
    #: Index of its home country among the countries. Determines the style of its name and the places in its facts.
    home: int
    #: Occupation of a person, industry of a company, else empty.
    role: str
    #: The year of birth, founding or release.
    year: int
    #: Index of the entity of which this is a near-duplicate, or -1.
    duplicate_of: int = -1


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of an entity."""

    name: str
    #: The style of its words.
    style: int
    #: The invented word in the name; empty for people.
    word: str = ""
    aliases: tuple[str, ...] = ()
    #: Whether an entity of another type has the same name (homonym), or one of the same type (namesake).
    homonym: bool = False
    namesake: bool = False


def draft_population(articles: int, rng: random.Random) -> list[Draft]:
    """All entities in random order. There are at least two countries, each with a city, a river and a mountain."""
    counts = {name: max(2, articles * row.share // 1000) for name, row in TYPES.items()}
    counts["person"] += articles - sum(counts.values())
    countries = counts["country"]
    roles = {"person": OCCUPATIONS, "company": INDUSTRIES}
    drafts = []
    for kind, count in counts.items():
        weights, (low, high) = roles.get(kind, {}), TYPES[kind].years
        for position in range(count):
            # Every country gets one of each type before the rest is random, so that each has a capital.
            home = position if position < countries else rng.randrange(countries)
            role = ""
            if weights:  # every role occurs at least once
                drawn = position >= len(weights)
                role = by_ticket(weights, rng.randrange(sum(weights.values()))) if drawn else [*weights][position]
            drafts.append(Draft(kind, home, role, rng.randrange(low, high + 1)))
    rng.shuffle(drafts)
    return _with_near_duplicates(drafts, rng)


def by_ticket(weights: dict[str, int], ticket: int) -> str:
    """The name that has a ticket, where every name has as many tickets as its weight."""
    return tuple(weights)[bisect_right(tuple(accumulate(weights.values())), ticket)]


def _with_near_duplicates(drafts: list[Draft], rng: random.Random) -> list[Draft]:
    """The same drafts, some of them replaced by a near-duplicate of another of their type."""
    seen: dict[str, list[int]] = {}
    in_country = Counter((draft.kind, draft.home) for draft in drafts)
    in_role = Counter((draft.kind, draft.role) for draft in drafts)
    for index, draft in enumerate(drafts):
        earlier = seen.setdefault(draft.kind, [])
        # The last entity of a type in a country, or of a role, is not replaced: facts refer to it.
        spare = min(in_country[draft.kind, draft.home], in_role[draft.kind, draft.role]) > 1
        if draft.kind != "country" and spare and len(earlier) > 20 and rng.random() < NEAR_DUPLICATE_SHARE:
            original = rng.choice(earlier)
            in_country[draft.kind, draft.home] -= 1
            in_role[draft.kind, draft.role] -= 1
            drafts[index] = replace(
                draft, home=drafts[original].home, role=drafts[original].role, duplicate_of=original
            )
        else:
            earlier.append(index)
    return drafts


def name_population(drafts: list[Draft], namer: Namer, rng: random.Random) -> list[Naming]:
    """A name for every draft, in order."""
    countries = sum(1 for draft in drafts if draft.kind == "country")
    styles = [number % len(STYLES) for number in range(countries)]  # several countries share a style
    rng.shuffle(styles)
    people = sum(1 for draft in drafts if draft.kind == "person")
    given = [[namer.word(style) for _ in range(max(20, people // 60))] for style in range(len(STYLES))]
    family = [[namer.word(style) for _ in range(max(30, people // 14))] for style in range(len(STYLES))]
    taken: set[str] = set()
    namings: list[Naming] = []
    for draft in drafts:
        style, word = styles[draft.home], ""
        original = namings[draft.duplicate_of] if draft.duplicate_of >= 0 else None
        if draft.kind == "person" and original is not None:
            first, last = original.name.split()
            name = f"{namer.near(first)} {last}" if rng.random() < 0.5 else f"{first} {namer.near(last)}"
            taken.add(name)
        elif draft.kind == "person":
            name = f"{rng.choice(given[style])} {rng.choice(family[style])}"
            while name in taken:  # full names are unique, until namesakes are made on purpose
                name = f"{rng.choice(given[style])} {namer.near(rng.choice(family[style]))}"
            taken.add(name)
        elif original is not None:
            word = namer.near(original.word)
            name = original.name.replace(original.word, word)
        else:
            word = namer.word(style, country=draft.kind == "country")
            name = namer.named(draft.kind, word, draft.role)
        namings.append(Naming(name, style, word, _alias(draft, word, style, namer, rng)))
    return _with_homonyms(drafts, namings, rng)


def _alias(draft: Draft, word: str, style: int, namer: Namer, rng: random.Random) -> tuple[str, ...]:
    if rng.random() >= ALIAS_SHARE:
        return ()
    if draft.kind in ("company", "university"):
        return (namer.contraction(word, style),)
    fresh = namer.word(style)
    if draft.kind in ("book", "film", "album", "painting", "mountain", "bridge", "museum"):
        return (namer.named(draft.kind, fresh),)
    return (fresh,)


def _with_homonyms(drafts: list[Draft], namings: list[Naming], rng: random.Random) -> list[Naming]:
    """The same names, some of them now shared by two entities."""
    members: dict[str, list[int]] = {}
    for index, draft in enumerate(drafts):
        members.setdefault(draft.kind, []).append(index)
    # A name is shared by at most two entities, and never by near-duplicates.
    shared = {index for index, draft in enumerate(drafts) if draft.duplicate_of >= 0}
    shared |= {draft.duplicate_of for draft in drafts if draft.duplicate_of >= 0}

    def share_name(receiver: int, source: int, same_type: bool) -> None:
        shared.update((receiver, source))
        naming = replace(namings[source], homonym=not same_type, namesake=same_type)
        namings[source], namings[receiver] = naming, replace(naming, aliases=namings[receiver].aliases)

    for kind, portion in NAMESAKES.items():
        for receiver in members[kind]:
            source = rng.choice(members[kind])
            free = receiver not in shared and source not in shared and source != receiver
            same = (drafts[receiver].role, drafts[receiver].home) == (drafts[source].role, drafts[source].home)
            differs = drafts[receiver].role != drafts[source].role if kind == "person" else not same
            if rng.random() < portion and free and differs:
                share_name(receiver, source, same_type=True)
    for (kind, other), portion in HOMONYMS.items():
        for receiver in members[kind]:
            source = rng.choice(members[other])
            if rng.random() < portion and receiver not in shared and source not in shared:
                share_name(receiver, source, same_type=False)
    return namings
