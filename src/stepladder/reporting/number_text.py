"""Numbers as text, on the terminal and on HTML pages."""

from stepladder.evaluation.statistics import Interval, interval_text

UNKNOWN = "-"


def decimal(value: float | None, digits: int = 2) -> str:
    """A number with `digits` decimals, large numbers with none; a dash if unknown."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def whole(count: int | None) -> str:
    """A count with thousands separators; a dash if unknown."""
    return UNKNOWN if count is None else f"{count:,}"


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "episode"), counted(2000, "episode")
    ('1 episode', '2,000 episodes')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def brief(count: float | None) -> str:
    """A count, abbreviated.

    >>> brief(None), brief(87.4), brief(1_234), brief(35_280), brief(1_250_000)
    ('-', '87', '1.2k', '35k', '1.2M')
    """
    if count is None:
        return UNKNOWN
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= size * 0.9995:
            return f"{count / size:.1f}{unit}" if count < 9.95 * size else f"{count / size:.0f}{unit}"
    return f"{count:.0f}"


def interval(found: Interval | dict[str, float] | None) -> str:
    """A mean with its interval; a dash if unknown."""
    if found is None:
        return UNKNOWN
    found = Interval(**found) if isinstance(found, dict) else found
    return interval_text(found, 0 if abs(found.mean) >= 100 else 2)


def p_text(p: float) -> str:
    """A p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def typeset(words: str) -> str:
    """Numbers with a typographic minus; an en dash if unknown."""
    return "–" if words == UNKNOWN else words.replace("-", "−")
