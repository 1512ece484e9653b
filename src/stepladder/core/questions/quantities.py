"""Numbers with units in text: "3.5 km", "1,200", "1.2e3", "twelve", "2 million".

In: a text. Out: `Quantity`s. Digits may have commas between thousands; words count only if the text has no digits. A
number may be followed by thousand, million, billion or trillion. Known units are converted into each other; any other
word after a number is not a unit.
"""

import math
import re
from dataclasses import dataclass

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_SMALL)} | {word: 10 * n for n, word in enumerate(_TENS, start=2)}
_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9, "trillion": 1e12}
#: By dimension: the factor of each unit, with its other names.
_FACTORS: dict[str, dict[str, float]] = {
    "length": {
        **{"mm millimeter millimetre": 1e-3, "cm centimeter centimetre": 1e-2, "m meter metre": 1.0},
        **{"km kilometer kilometre": 1e3, "inch inches": 0.0254, "ft foot feet": 0.3048, "yd yard": 0.9144},
        "mi mile": 1609.344,
    },
    "mass": {
        **{"mg milligram": 1e-6, "g gram": 1e-3, "kg kilogram": 1.0, "tonne ton": 1e3},
        **{"lb lbs pound": 0.45359237, "oz ounce": 0.028349523},
    },
    "time": {"s sec second": 1.0, "min minute": 60.0, "h hr hour": 3600.0, "day": 86400.0, "week": 604800.0},
    "volume": {"ml milliliter millilitre": 1e-3, "l liter litre": 1.0},
    "share": {"% percent": 1.0},
}
_UNITS = {
    form: (dimension, factor)
    for dimension, factors in _FACTORS.items()
    for names, factor in factors.items()
    for name in names.split()
    for form in (name, f"{name}s")
}
#: Between thousands: a comma, or a space that does not break.
_SEPARATOR = re.compile(r"[,\u00a0\u2009\u202f]")
_NUMBER = re.compile(
    rf"(?<![\w.,])(?P<number>[-+\u2212]?(?:\d{{1,3}}(?:{_SEPARATOR.pattern}\d{{3}})+|\d+)(?:\.\d+)?(?:e[-+]?\d+\b)?)(?!\d)"
    rf"[\s-]*(?P<scale>(?:{'|'.join(_SCALES)})\b)?\s*(?P<unit>%|[a-z]+)?",
    re.IGNORECASE,
)
#: Relative difference that is allowed after a conversion, for values that were rounded.
_ROUNDING = 0.01


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, with its unit if it is a known one."""

    value: float
    unit: str = ""

    @property
    def dimension(self) -> str:
        """What the unit measures; empty without one."""
        return _UNITS[self.unit][0] if self.unit else ""

    def equals(self, other: "Quantity") -> bool:
        """Whether both are the same amount.

        A number without a unit is compared as a number. Amounts in different units may differ by 1%.
        """
        if not self.unit or not other.unit:
            return math.isclose(self.value, other.value)
        if self.dimension != other.dimension:
            return False
        (_, ours), (_, theirs) = _UNITS[self.unit], _UNITS[other.unit]
        return math.isclose(self.value * ours, other.value * theirs, rel_tol=1e-9 if ours == theirs else _ROUNDING)


def quantities(text: str) -> list[Quantity]:
    """The numbers in a text, in order.

    >>> quantities("It is 3.5 km long and has 1,200 steps")
    [Quantity(value=3.5, unit='km'), Quantity(value=1200.0, unit='')]
    >>> quantities("Two hundred and twelve miles")
    [Quantity(value=212.0, unit='miles')]
    """
    found = [_quantity(match) for match in _NUMBER.finditer(text)]
    return found or _spelled(re.findall(r"[a-z]+", text.lower()))


def same_amount(prediction: str, answer: str) -> bool:
    """Whether a prediction gives the number of an answer: its first with a unit of that kind, else its first.

    >>> [same_amount(text, "3.5 km") for text in ("3,500 m", "3.5", "About 2.17 miles", "3.5 kg")]
    [True, True, True, False]
    """
    given, accepted = quantities(prediction), quantities(answer)
    if not given or not accepted:
        return False
    (right, *_), first = accepted, given[0]
    fitting = (each for each in given if right.unit and each.dimension == right.dimension)
    return next(fitting, first).equals(right)


def _quantity(match: re.Match[str]) -> Quantity:
    value = float(_SEPARATOR.sub("", match["number"]).replace("\u2212", "-"))
    return Quantity(value * _SCALES.get((match["scale"] or "").lower(), 1.0), _known((match["unit"] or "").lower()))


def _known(word: str) -> str:
    return word if word in _UNITS else ""


def _spelled(words: list[str]) -> list[Quantity]:
    """Numbers in words: each begins with a word from zero to ninety."""
    found: list[Quantity] = []
    place = 0
    while place < len(words):
        if words[place] not in _WORDS:
            place += 1
            continue
        total, part = 0.0, 0.0
        while place < len(words):
            word = words[place]
            if word in _WORDS:
                if not _continues(int(part) % 100, _WORDS[word]):  # another number: "one, two"
                    break
                part += _WORDS[word]
            elif word == "hundred":
                part *= 100
            elif word in _SCALES:
                total, part = total + part * _SCALES[word], 0.0
            elif not (word == "and" and place + 1 < len(words) and words[place + 1] in _WORDS and part + total >= 100):
                break
            place += 1
        found.append(Quantity(total + part, _known(words[place]) if place < len(words) else ""))
    return found


def _continues(said: int, value: int) -> bool:
    """Whether a word continues a number whose last two digits are said: "twenty" by "one", "one hundred" by "six"."""
    return said == 0 or (said >= 20 and said % 10 == 0 and value < 10)
