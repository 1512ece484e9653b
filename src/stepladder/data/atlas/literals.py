"""Dates, years, numbers and terms: their spelling in passages, and all spellings accepted as answers."""

from dataclasses import dataclass

_MONTHS = "January February March April May June July August September October November December"
MONTHS = tuple(_MONTHS.split())


@dataclass(frozen=True, slots=True)
class Value:
    """The object of a fact, if it is not an entity."""

    #: Accepted spellings. The first is canonical and used in passages.
    spellings: tuple[str, ...]
    #: Sort key for comparisons; 0 for terms, which have no order.
    order: int = 0


def date(year: int, month: int, day: int) -> Value:
    """A calendar date.

    >>> date(1874, 3, 12).spellings
    ('12 March 1874', 'March 12, 1874')
    """
    name = MONTHS[month - 1]
    return Value((f"{day} {name} {year}", f"{name} {day}, {year}"), (year * 12 + month) * 31 + day)


def year(number: int) -> Value:
    """A year."""
    return Value((str(number),), number)


def number(amount: int, *suffixes: str) -> Value:
    """A number and the units that may follow it. Passages use the first unit, which may be empty.

    >>> number(2310, "metres", "m").spellings, number(58900, "", "inhabitants").spellings
    (('2,310 metres', '2,310 m', '2,310'), ('58,900', '58,900 inhabitants'))
    """
    spellings = [f"{amount:,} {word}".rstrip() for word in (*suffixes, "")]
    return Value(tuple(dict.fromkeys(spellings)), amount)


def term(text: str, *suffixes: str) -> Value:
    """A term (an occupation, a language, a genre) and the words that may follow it.

    >>> term("folk", "music").spellings
    ('folk', 'folk music')
    """
    return Value((text, *(f"{text} {word}" for word in suffixes)))
