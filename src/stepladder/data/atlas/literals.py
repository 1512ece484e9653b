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

    #: Accepted spellings; the first is canonical, and the one that passages use.
    spellings: tuple[str, ...]
    #: What comparisons go by; 0 for terms, which have no order.
    order: int = 0


def date(year: int, month: int, day: int) -> Value:
    """A day of the calendar.

    >>> date(1874, 3, 12).spellings
    ('12 March 1874', 'March 12, 1874')
    """
    name = MONTHS[month - 1]
    return Value((f"{day} {name} {year}", f"{name} {day}, {year}"), (year * 12 + month) * 31 + day)


def year(number: int) -> Value:
    """A year by itself."""
    return Value((str(number),), number)


def number(amount: int, *followers: str) -> Value:
    """A count or an amount, and the words that may follow it; the first of them, if not empty, always does in passages.

    >>> number(2310, "metres", "m").spellings, number(58900, "", "inhabitants").spellings
    (('2,310 metres', '2,310 m', '2,310'), ('58,900', '58,900 inhabitants'))
    """
    spellings = [f"{amount:,} {word}".rstrip() for word in (*followers, "")]
    return Value(tuple(dict.fromkeys(spellings)), amount)


def term(text: str, *followers: str) -> Value:
    """A word (an occupation, a language, a genre) and what may follow it.

    >>> term("folk", "music").spellings
    ('folk', 'folk music')
    """
    return Value((text, *(f"{text} {word}" for word in followers)))
