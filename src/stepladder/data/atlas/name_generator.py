"""Generate names: pronounceable invented words in eight styles, and names built from them.

In: a seeded `random.Random` and words to avoid. Out: names. Every invented word is used for one entity only, except
given and family names, which people share on purpose. `Namer.words` has all invented words, so that another world can
avoid them.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from stepladder.core.io.yaml_tables import read_table
from stepladder.data.atlas.catalogue import WORDING_WORDS
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
