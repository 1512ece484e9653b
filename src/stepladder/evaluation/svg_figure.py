"""Charts drawn by matplotlib, as SVG that is readable in light and in dark mode.

In: a generator that paints a matplotlib figure. Out: `svg_file` returns a self-contained SVG document, `svg_element` a
part of an HTML page, whose style sheet must include `STYLE`. Figures are painted in the colors of light mode; each
color becomes a CSS class. Text stays text. matplotlib is imported when the first chart is drawn.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from io import StringIO
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from stepladder.core.unicode import readable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Artists that have a tooltip, each with its text.
Tooltips = Iterator[tuple["Artist", str]]
Paint = Callable[["Figure"], Tooltips]

#: Colors in light and in dark mode, by the name of their CSS class.
_COLORS = {
    "paper": ("#ffffff", "#10171d"),
    "ink": ("#1d2b36", "#e3eaf0"),
    "quiet": ("#556571", "#9aa9b6"),
    "rule": ("#9aa8b3", "#56656f"),
    "grid": ("#e4e9ed", "#222d36"),
    "series0": ("#d2562b", "#e8845c"),
    "series1": ("#0c8775", "#2bb19b"),
    "series2": ("#3f66b8", "#7f9fe6"),
    "series3": ("#8a4fa3", "#bd8ad6"),
    "series4": ("#94730a", "#d1ae45"),
}
_CLASSES = {light: name for name, (light, _) in _COLORS.items()}
PAPER, INK, QUIET, RULE, GRID, *SERIES = _CLASSES
#: The style of reference lines.
DASHED: dict[str, Any] = {"color": QUIET, "linewidth": 1, "linestyle": (0, (5, 4))}

#: Width of a file, height of its title and subtitle, distance of its text from the sides.
WIDTH, TOP, MARGIN = 760, 84, 24
HEADLINE, FONT, SMALL = 17.0, 13.0, 11.5

_PARAMETERS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "stepladder",
    "text.parse_math": False,
    "text.color": INK,
    "font.size": SMALL,
    "axes.labelsize": FONT,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.edgecolor": RULE,
    "grid.color": GRID,
    "grid.linewidth": 1.0,
    "xtick.color": RULE,
    "xtick.major.size": 5.0,
    "ytick.major.size": 0.0,
    "ytick.major.pad": 8.0,
    "lines.linewidth": 2.0,
    "lines.markersize": 8.0,
    "lines.markeredgecolor": PAPER,
    **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), QUIET),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.left", "axes.spines.right", "axes.spines.top"), False),
}


def _rules(mode: int) -> str:
    return "".join(
        f".chart .fill-{name}{{fill:{colors[mode]}}}.chart .stroke-{name}{{stroke:{colors[mode]}}}\n"
        for name, colors in _COLORS.items()
    )


#: The style sheet of all charts.
STYLE = f"""\
.chart text{{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}}
.chart *{{stroke-linejoin:round}}
{_rules(0)}@media screen and (prefers-color-scheme:dark){{
{_rules(1)}}}
"""


def svg_file(title: str, subtitle: str, height: float, paint: Paint) -> str:
    """A self-contained SVG document with a title, a subtitle and its own style sheet."""

    def with_title(figure: "Figure") -> Tooltips:
        figure.set_facecolor(PAPER)
        write(figure, MARGIN, 36, readable(title, 70), size=HEADLINE, weight="bold")
        write(figure, MARGIN, 57, readable(subtitle, 100), size=FONT, color=QUIET)
        yield from paint(figure)

    root = _drawn(title, WIDTH, height, with_title)
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "width": str(WIDTH), "height": f"{height:g}"}
    root.insert(0, _text_element("style", STYLE))
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def svg_element(title: str, width: float, height: float, paint: Paint) -> str:
    """An SVG element for an HTML page."""
    return ElementTree.tostring(_drawn(title, width, height, paint), encoding="unicode")


def plot_area(figure: "Figure", left: float, right: float, top: float, bottom: float) -> "Axes":
    """Axes with margins in pixels, whose numbers have a typographic minus."""
    width, height = figure.get_size_inches() * 72
    axes = figure.add_axes((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: number(value))
    return axes


def write(figure: "Figure", x: float, y: float, words: str, **style: Any) -> None:
    """Text at a distance in pixels from the left side (if negative, from the right side) and from the top."""
    width, height = figure.get_size_inches() * 72
    figure.text((x / width) % 1, 1 - y / height, words, ha="right" if x < 0 else "left", **style)


def number(value: float) -> str:
    """A number with a typographic minus and without floating-point noise."""
    return f"{round(value, 9):g}".replace("-", "−")


def _drawn(title: str, width: float, height: float, paint: Paint) -> ElementTree.Element:
    import matplotlib
    from matplotlib.figure import Figure

    tooltips: dict[str | None, str] = {}
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing", UserWarning)  # the reader's fonts are used, not ours
        matplotlib.rcdefaults()  # the user's settings must not change the picture
        matplotlib.rcParams.update(_PARAMETERS)
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        for artist, words in paint(figure):
            artist.set_gid(f"tooltip-{len(tooltips)}")
            tooltips[artist.get_gid()] = readable(words)
        buffer = StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    root[:] = [each for each in root if not each.tag.endswith(("metadata", "defs"))]
    for each in root.iter():
        tooltip = tooltips.get(each.get("id"))
        _restyle(each)
        if tooltip is not None:
            each.insert(0, _text_element("title", tooltip))
    root.attrib = {"class": "chart", "viewBox": root.attrib["viewBox"], "role": "img", "aria-label": readable(title)}
    return root


def _restyle(element: ElementTree.Element) -> None:
    """Replace colors by classes. Remove fonts, names of groups, digits and blanks that are not needed."""
    element.tag = element.tag.rpartition("}")[2]
    element.text, element.tail = element.text if element.tag in ("text", "title") else None, None
    found = {name.rpartition("}")[2]: value for name, value in element.attrib.items()}
    kept, classes = [], []
    for declaration in found.pop("style", "").split("; "):
        name, _, value = declaration.partition(": ")
        if value in _CLASSES:
            classes.append(f"{name}-{_CLASSES[value]}")
        elif name not in ("", "font-family"):
            kept.append(f"{name}:{value}")
    found.pop("clip-path", None)  # all data are inside the plot area
    if element.tag == "g":
        found.pop("id", None)
    for name in {"d", "x", "y", "transform"} & found.keys():
        shorter = " ".join(found[name].split())
        found[name] = re.sub(r"\d+\.\d+", lambda digits: f"{float(digits[0]):.1f}", shorter)
    found |= {"style": ";".join(kept), "class": " ".join(classes)}
    element.attrib = {name: value for name, value in found.items() if value}


def _text_element(tag: str, text: str) -> ElementTree.Element:
    element = ElementTree.Element(tag)
    element.text = text
    return element
