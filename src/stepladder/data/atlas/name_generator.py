"""Generate names: pronounceable invented words in eight styles, and names built from them.

In: a seeded `random.Random` and words to avoid. Out: names. Every invented word is used for one entity only, except
given and family names, which people share on purpose. `Namer.words` has all invented words, so that another world can
avoid them.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass

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


def _style(onsets: str, vowels: str, links: str, endings: str, country_endings: str) -> Style:
    return Style(*(tuple(part.split()) for part in (onsets, vowels, links, endings, country_endings)))


STYLES: tuple[Style, ...] = (
    _style(
        "b br c d dr f g gl h l m n p r s st t tr v w",
        "a e i o u ae ea",
        "b d f l ll m n nd r rd rr s st t th v x",
        "n r s th l nd rn ck m ld",
        "land mark reach",
    ),
    _style(
        "b c d f g l m n p q r s t v z sc",
        "a e i o u ia",
        "b c d l ll m n nt r rr s ss t tt v z gn sc",
        "a o e i ona ello ina eto ara isi",
        "ia ara ona",
    ),
    _style(
        "b d f g h j k kn l m n r s sk sv t tj v",
        "a e i o u y ei",
        "b d f g k l ld m n ng r rg rn s sk t v",
        "en er ar ik und orp an eld is ull",
        "mark heim oy",
    ),
    _style(
        "b ch d g j k kh m n r s sh t y z zh",
        "a e i o u ai",
        "b d gh j k l m n r s sh t v y z rz",
        "an ar esh ir od ul az im at ek",
        "istan abad ar",
    ),
    _style(
        "b bl c d dw f g gw l ll m n p r rh t tr",
        "a e i o u y",
        "b d dd f g l ll m n nn r rth s th w gl",
        "yn en an ys on ach eth or aid og",
        "ys wen ydd",
    ),
    _style(
        "h k l m n p r t v w f s",
        "a e i o u ao ei",
        "h k l m n p r t v w l m n r k",
        "a i o u e oa ua ika alo ena",
        "oa ea una",
    ),
    _style(
        "b br c ch d g gr h k kr l m mr n p pr r s st t v vl z",
        "a e i o u",
        "b ch d dn j k l m n r s sh sl t v vr z zd",
        "ov ek in ka ic an ava or il usk",
        "ova inia ska",
    ),
    _style(
        "d f g h k l m n ph r s t th x",
        "a e i o u eu",
        "b d g k l m n nd ph r s st t th x rm",
        "os is on es as ion eia yx or ax",
        "eia ion ike",
    ),
)

#: What follows the invented word in the name of a company, by industry.
COMPANY_SUFFIXES: dict[str, tuple[str, ...]] = {
    "publishing": ("Press", "Editions", "House"),
    "recording": ("Records", "Sound", "Music"),
    "shipbuilding": ("Shipyard", "Marine", "Docks"),
    "brewing": ("Brewery", "Breweries"),
    "textile": ("Mills", "Weavers"),
    "insurance": ("Mutual", "Assurance"),
    "clockmaking": ("Clocks", "Chronometers"),
    "mining": ("Minerals", "Mines"),
}

_PATTERNS: dict[str, tuple[str, ...]] = {
    "country": ("{}",),
    "city": ("{}",),
    "river": ("{}",),
    "mountain": ("Mount {}", "{} Peak", "{} Horn", "Mount {}"),
    "bridge": ("{} Bridge", "{} Bridge", "{} Viaduct"),
    "museum": ("{} Museum", "{} Gallery"),
    "university": ("{} University", "{} College", "{} Institute"),
    "club": ("{} Rovers", "{} United", "{} Athletic", "{} Wanderers"),
    "book": ("The Lanterns of {}", "A Season in {}", "Letters to {}", "The Heirs of {}", "{} Unbound"),
    "film": ("The Road to {}", "Goodbye {}", "{} Rising", "Midnight in {}", "The {} Affair"),
    "band": ("{}", "{} Quartet", "{} Parade", "{} Machine"),
    "album": ("Songs for {}", "{} Blues", "Echoes of {}", "{} Serenade", "Under {} Skies"),
    "painting": ("{} at Dusk", "View of {}", "The {} Harvest", "Storm over {}", "{} Interior"),
    "ship": ("{}", "{} Star", "Spirit of {}", "{} Queen"),
}

#: Words of names, industries and dates that are not invented.
_FIXED_WORDS: frozenset[str] = frozenset(
    word.lower()
    for texts in (*_PATTERNS.values(), *COMPANY_SUFFIXES.values(), MONTHS)
    for text in texts
    for word in text.split()
)

#: English words that the generator could produce. As names they would be hard to search for.
_ENGLISH = """
    above banal band bare baron base bases basic basin basis been began being beta better bind binge bitter
    bladder bland blaze blind bode bond border bound brand brave bribe burden butter cabin cable canal canon
    care case cave chance choice cider close coda code colon color cone coral core cote cover cube cubic curse
    cute dance danger dare data daze defend defer demon dense dice diner dither diva diver does doing dolor dose
    dote driver drives dude duke dune eleven even fable fake fakes fare faster felon fever file filler final
    find fine finer fire fires five fixes folder fond fore found fuse fusion game games garden gate gates gave
    gaze gender give gives glance gland glaze globe golden grand grave grind gutter halo hand harden hare hate
    have haven having haze header heaven here heron hidden hides hinge holder hole holes honor hope horse hose
    hover human into labor ladder lance land lane lanes late latin leader legal lemon lesson letter level like
    line linen liner lines lite live liver lode logos lone lore lose loses love lover loyal lube madder maiden
    major make maker makes male mama mange mare mason master matter maven maze medal melon memo menu mere merger
    mesa metal meter mile mime mimic mind mine miner mini minor mister mixes mode modes moral more moron morse
    most mote mound move moves mule murder mute mutter names naval never nice nine noble node noise none nose
    note notes notion nude nurse omen once open order other oven over panda panic papa papal paper pasta pastes
    pedal penal person petal phases pipe poison poke pole pond pose praise prison prize probe prose pure purse
    race raise range rare rate rates raven reader reason refer regal region relic render resin rider rides rise
    rival river robe robin rode roles roman rope rose rote round routes rowan royal rudder rude ruin rule rules
    saber sadder safer sake sale salon same sand sane saner satin save scale scene score season semi sender
    sense sermon seven severe side sides signal silver sine siren sister site size slave sober soda sofa solar
    sole solo some sound stand states static stolen such sudden sugar sure table taken takes tale tape taper
    tare taxes tender tense terse themes then there these thesis they this those thunder tiger tile tiles time
    timer times tinge token tone total tote treason tribe tube tune tuner tunes tutor under valor verse very
    villa viola visa vital voice volume vote wake wand wander wares wave weather were when where while wider
    wind wipe wiper wire wise within woman women wonder wood wooden wound zero zone
"""

_RESERVED_WORDS = WORDING_WORDS | _FIXED_WORDS | frozenset(_ENGLISH.split())


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
            if not _begins_with_vowel(ending):
                text += rng.choice(sounds.vowels)
            text += ending
            if 4 <= len(text) <= 10 and text not in self.words and text not in self._avoid:
                self.words.add(text)
                return text.capitalize()

    def near(self, word: str) -> str:
        """A new word that differs from another in one vowel."""
        rng, lower = self._rng, word.lower()
        vowels = [index for index, letter in enumerate(lower) if letter in "aeiouy" and index > 0]
        for _ in range(40):
            index = rng.choice(vowels)
            text = lower[:index] + rng.choice("aeiou") + lower[index + 1 :]
            if text not in self.words and text not in self._avoid:
                self.words.add(text)
                return text.capitalize()
        return self.word(0)

    def contraction(self, word: str, style: int) -> str:
        """A new short form of a word: its first letters with another ending."""
        while True:
            text = word[:3].lower() + self.word(style)[-3:]
            if text not in self.words and text not in self._avoid:
                self.words.add(text)
                return text.capitalize()

    def named(self, kind: str, word: str, industry: str = "") -> str:
        """The full name of an entity of a type, built around an invented word."""
        if kind == "company":
            return f"{word} {self._rng.choice(COMPANY_SUFFIXES[industry])}"
        return self._rng.choice(_PATTERNS[kind]).format(word)


def _begins_with_vowel(text: str) -> bool:
    return text[0] in "aeiouy"
