"""Text in SVG pictures: escaped, and wrapped to a width that is estimated without a font."""

import unicodedata
from xml.sax.saxutils import escape


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Text with its baseline at y. `kind`: CSS classes, such as "small end"."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape_xml(words)}</text>' if words else ""


def fit_text(words: str, width: float, lines: int, font: float) -> tuple[str, ...]:
    """Text wrapped into at most `lines` lines of `width` pixels; the rest becomes an ellipsis.

    >>> fit_text("Who designed the Zenusi Bridge?", 120, lines=2, font=12.5)
    ('Who designed the', 'Zenusi Bridge?')
    >>> fit_text("Who designed the Zenusi Bridge?", 120, lines=1, font=12.5)
    ('Who designed th…',)
    """
    if lines == 1 or text_width(words, font) <= width:
        return (_truncated(words, width, font),)
    parts, taken = words.split(" "), 1
    while taken < len(parts) and text_width(" ".join(parts[: taken + 1]), font) <= width:
        taken += 1
    rest = " ".join(parts[taken:])
    return (_truncated(" ".join(parts[:taken]), width, font), *(fit_text(rest, width, lines - 1, font) if rest else ()))


def text_width(words: str, font: float) -> float:
    """The approximate width of text in pixels, measured with a wide font so that it fits in other fonts too."""
    return font * sum(map(_letter_width, words))


def _truncated(words: str, width: float, font: float) -> str:
    if text_width(words, font) <= width:
        return words
    end = len(words)
    while end and text_width(f"{words[:end]}…", font) > width:
        end -= 1
    return f"{words[:end].rstrip()}…"


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if letter in " .,:;'|!()[]/·ijltfrI":
        return 0.36
    if letter in "mwMW@%…<>=+#&_":
        return 0.95
    return 0.66 if letter.isupper() or letter.isdigit() else 0.6


def escape_xml(words: str) -> str:
    """Text escaped for XML. Characters that XML does not allow are replaced."""
    allowed = "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in words)
    return escape(allowed, {'"': "&quot;"})
