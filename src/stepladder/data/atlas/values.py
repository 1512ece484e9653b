"""Dates, years, numbers and terms: how they are written in passages and which spellings count as the answer."""

from dataclasses import dataclass

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


@dataclass(frozen=True, slots=True)
class Value:
    """An object of a fact that has no article of its own."""

    #: Accepted spellings; the first is canonical.
    spellings: tuple[str, ...]
    #: How many of the first spellings passages use.
    written: int = 1
    #: What comparisons go by; 0 for terms, which have no order.
    order: int = 0


def date(year: int, month: int, day: int) -> Value:
    """A day of the calendar.

    >>> date(1874, 3, 12).spellings
    ('12 March 1874', 'March 12, 1874')
    """
    name = MONTHS[month - 1]
    return Value((f"{day} {name} {year}", f"{name} {day}, {year}"), 2, (year * 12 + month) * 31 + day)


def year(number: int) -> Value:
    """A year by itself."""
    return Value((str(number),), order=number)


def number(amount: int, unit: str = "", short: str = "") -> Value:
    """A count, or an amount of some unit.

    >>> number(2310, "metres", "m").spellings
    ('2,310 metres', '2310 metres', '2,310 m', '2,310', '2310')
    """
    bare = [f"{amount:,}", str(amount)]
    spellings = [f"{text} {unit}" for text in bare] if unit else []
    if short:
        spellings.append(f"{amount:,} {short}")
    return Value(tuple(dict.fromkeys(spellings + bare)), order=amount)


def term(text: str) -> Value:
    """A word: an occupation, a language, a genre."""
    return Value((text,))
