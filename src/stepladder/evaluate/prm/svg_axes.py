"""What the charts of plots.py are made of: a page that is readable in light and in dark, text, and axes.

In: pieces of SVG and where they stand. Out: one self-contained SVG, text as text, as wide as a column of a page.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from stepladder.reporting.charts.tree_layout import fit

WIDTH, MARGIN = 760, 24
#: Sizes of fonts.
HEADLINE, FONT, SMALL = 17.0, 13.0, 11.5
#: Bold letters are wider by this.
BOLD = 1.15
#: Where the first thing below title and subtitle may stand.
TOP = 84.0
#: Different series: what is drawn in light, and in dark.
SERIES = (
    ("#d2562b", "#e8845c"),
    ("#0c8775", "#2bb19b"),
    ("#3f66b8", "#7f9fe6"),
    ("#8a4fa3", "#bd8ad6"),
    ("#94730a", "#d1ae45"),
)


@dataclass(frozen=True, slots=True)
class Axis:
    """A straight line of numbers, from `low` at pixel `start` to `high` at pixel `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a number."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def page(title: str, subtitle: str, height: float, parts: Iterable[str]) -> str:
    """A whole picture: title, subtitle, and below them its parts."""
    size = f'width="{WIDTH}" height="{height:g}"'
    colours = ["".join(f".s{n}{{color:{each[dark]}}}" for n, each in enumerate(SERIES)) for dark in (0, 1)]
    room = WIDTH - 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" {size} role="img" '
            f'aria-label="{xml(title)}">',
            f"<style>{_LIGHT}{colours[0]}",
            f"@media (prefers-color-scheme:dark){{{_DARK}{colours[1]}}}</style>",
            f'<rect class="paper" {size}/>',
            text(MARGIN, 36, fit(title, room, 1, HEADLINE * BOLD)[0], "headline"),
            text(MARGIN, 57, fit(subtitle, room, 1, FONT)[0], "quiet"),
            *parts,
            "</svg>\n",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Words with their baseline at y. `kind`: classes of the style sheet, such as "small end"."""
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{xml(words)}</text>' if words else ""


def upright(x: float, y: float, words: str) -> str:
    """Words written from below to above, around y."""
    return f'<g transform="translate({x:.1f} {y:.1f}) rotate(-90)">{text(0, 0, words, "quiet middle")}</g>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def bar(x: float, y: float, width: float, height: float, kind: str, tooltip: str) -> str:
    """A filled rectangle that says what it stands for when it is pointed at."""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="bar {kind}" {place}><title>{xml(tooltip)}</title></rect>'


def below(axis: Axis, y: float, step: float) -> Iterator[str]:
    """The numbers of an axis, written below it."""
    for tick in ticks(axis, step):
        yield line(axis(tick), y, axis(tick), y + 5, "rule")
        yield text(axis(tick), y + 19, number(tick), "small middle")


def ticks(axis: Axis, step: float) -> list[float]:
    """The multiples of a step that lie on an axis."""
    first, last = math.ceil(axis.low / step - 1e-9), math.floor(axis.high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def round_step(span: float, most: int) -> float:
    """A round number (1, 2 or 5 with zeros) that fits into a span at most so many times.

    >>> round_step(9.3, most=10), round_step(0.7, most=4)
    (1.0, 0.2)
    """
    power = 10.0 ** math.floor(math.log10(span / most))
    return next((power * each for each in (1, 2, 5) if power * each * most >= span), power * 10)


def number(value: float) -> str:
    """A number with a minus as it is printed; roundings of the computer do not show."""
    return f"{round(value, 9):g}".replace("-", "−")


def xml(words: str) -> str:
    """Text as XML may hold it."""
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
