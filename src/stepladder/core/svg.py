"""SVG building blocks that all charts share: text that fits, lines, axes with ticks, and a complete SVG document.

In: numbers and labels with their pixel positions. Out: SVG elements as strings. `chart_page` assembles a self-contained
file with light and dark styles; `inline_chart` an element for an HTML page, which brings its own style sheet.
"""

import math
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, MARGIN = 760, 24
#: Font sizes.
HEADLINE, FONT, SMALL = 17.0, 13.0, 11.5
#: Width of bold text relative to regular text.
BOLD = 1.15
#: Height of the area for title and subtitle.
TOP = 84.0
#: Color of each series on a light and on a dark background.
SERIES = (
    ("#d2562b", "#e8845c"),
    ("#0c8775", "#2bb19b"),
    ("#3f66b8", "#7f9fe6"),
    ("#8a4fa3", "#bd8ad6"),
    ("#94730a", "#d1ae45"),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear scale from `low` at pixel `start` to `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def chart_page(title: str, subtitle: str, height: float, parts: Iterable[str]) -> str:
    """A self-contained SVG file: title, subtitle, and the chart's elements below them."""
    size = f'width="{WIDTH}" height="{height:g}"'
    colors = ["".join(f".s{n}{{color:{each[dark]}}}" for n, each in enumerate(SERIES)) for dark in (0, 1)]
    room = WIDTH - 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" {size} role="img" '
            f'aria-label="{escape_xml(title)}">',
            f"<style>{_LIGHT}{colors[0]}",
            f"@media (prefers-color-scheme:dark){{{_DARK}{colors[1]}}}</style>",
            f'<rect class="paper" {size}/>',
            text(MARGIN, 36, fit_text(title, room, 1, HEADLINE * BOLD)[0], "headline"),
            text(MARGIN, 57, fit_text(subtitle, room, 1, FONT)[0], "quiet"),
            *parts,
            "</svg>\n",
        ]
    )


def inline_chart(title: str, width: float, height: float, parts: Iterable[str]) -> str:
    """An SVG element for an HTML page, whose style sheet colors the classes."""
    box = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="chart" {box} role="img" aria-label="{escape_xml(title)}">{"".join(parts)}</svg>'


# --- elements ---------------------------------------------------------------------------------------------------


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Text with its baseline at y. `kind`: CSS classes, such as "small end"."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape_xml(words)}</text>' if words else ""


def vertical_text(x: float, y: float, words: str) -> str:
    """Text that reads upwards, centered at y."""
    return f'<g transform="translate({x:.1f} {y:.1f}) rotate(-90)">{text(0, 0, words, "quiet middle")}</g>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<path class="{kind}" d="{polyline([(x1, y1), (x2, y2)])}"/>'


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """The path data of straight lines from point to point.

    >>> polyline([(0, 1), (2.25, 3)])
    'M0.0 1.0L2.2 3.0'
    """
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def bar(x: float, y: float, width: float, height: float, kind: str, tooltip: str) -> str:
    """A filled rectangle with a tooltip."""
    area = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="bar {kind}" {area}><title>{escape_xml(tooltip)}</title></rect>'


def tick_labels(axis: Axis, y: float, step: float) -> Iterator[str]:
    """The ticks of a horizontal axis at height y, with their numbers below."""
    for tick in ticks(axis, step):
        yield line(axis(tick), y, axis(tick), y + 5, "rule")
        yield text(axis(tick), y + 19, number(tick), "small middle")


def grid_lines(axis: Axis, step: float, left: float, right: float, gap: float) -> Iterator[str]:
    """Horizontal grid lines at the ticks of a vertical axis, with their numbers `gap` pixels to the left."""
    for tick in ticks(axis, step):
        yield line(left, axis(tick), right, axis(tick), "grid")
        yield text(left - gap, axis(tick) + 4, number(tick), "small end")


# --- numbers and text -------------------------------------------------------------------------------------------


def ticks(axis: Axis, step: float) -> list[float]:
    """The multiples of a step on an axis."""
    first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def tick_step(span: float, most: int) -> float:
    """The smallest round step (1, 2 or 5 times a power of 10) that divides a span into at most `most` parts.

    >>> tick_step(9.3, most=10), tick_step(0.7, most=4)
    (1.0, 0.2)
    """
    power = 10.0 ** math.floor(math.log10(span / most))
    return next((power * each for each in (1, 2, 5) if power * each * most >= span), power * 10)


def number(value: float) -> str:
    """A number with a typographic minus and without floating-point noise."""
    return f"{round(value, 9):g}".replace("-", "−")


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


_LIGHT = f"""
text{{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:{FONT}px;fill:#1d2b36}}
text.headline{{font-size:{HEADLINE}px;font-weight:600}}text.name{{font-weight:600}}
text.number{{font-variant-numeric:tabular-nums}}
text.small{{font-size:{SMALL}px;fill:#5b6b78}}text.quiet{{fill:#5b6b78}}.end{{text-anchor:end}}.middle{{text-anchor:middle}}
.paper{{fill:#fff}}.bar,.dot{{fill:currentColor}}.dot{{stroke:#fff;stroke-width:1.5}}
.curve{{fill:none;stroke:currentColor;stroke-width:2.2;stroke-linejoin:round}}
.rule{{stroke:#9aa8b3;fill:none}}.grid{{stroke:#e4e9ed;fill:none}}.aim{{stroke:#74838f;stroke-dasharray:5 4;fill:none}}
.median{{stroke:#1d2b36;stroke-width:2.4;stroke-linecap:round;fill:none}}
"""
_DARK = """
text{fill:#e3eaf0}text.small,text.quiet{fill:#93a3b1}.paper{fill:#10171d}.dot{stroke:#10171d}
.rule{stroke:#56656f}.grid{stroke:#222d36}.aim{stroke:#8494a1}.median{stroke:#fff}
"""
