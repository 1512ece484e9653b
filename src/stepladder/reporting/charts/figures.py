"""The charts of reports, comparisons and studies: bands over repeated runs, forest plots, score vs. cost, curves.

In: labeled numbers. Out: SVG text. `bands_svg` makes a file, the others make elements of an HTML page.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stepladder.core.unicode import readable
from stepladder.evaluation import svg_figure as svg
from stepladder.evaluation.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: (update, value)
Points = Sequence[tuple[float, float]]
#: The end of a line, or a dot: position, name, color.
End = tuple[float, float, str, str]

ACCENT = svg.SERIES[1]
#: Height of the plot area of a band plot, and of each name beside it; maximum number of characters of a name.
_HEIGHT, _LINE, _NAME = 320.0, 18.0, 26
#: Forest plot: height of a row, space above and below the rows.
_ROW, _ABOVE, _BELOW = 28.0, 6.0, 30.0
#: Minimum range of the y axis of a learning curve, as a share of the largest value: a small change looks small.
_MIN_SPAN = 0.3


@dataclass(frozen=True, slots=True)
class Point:
    """The result of repeated runs at one x: mean and interval."""

    x: float
    mean: float
    low: float
    high: float
    runs: int


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a forest plot."""

    label: str
    interval: Interval
    #: The number shown at the right.
    caption: str
    #: The mean of each seed; empty for a single seed.
    seeds: tuple[float, ...] = ()
    #: Whether the row is highlighted.
    highlighted: bool = False


def bands_svg(
    title: str,
    series: Mapping[str, Sequence[Point]],
    *,
    across: str,
    up: str,
    subtitle: str = "",
    log: bool = False,
    marks: Mapping[str, float] | None = None,
) -> str:
    """One line and band per series, labeled at its right end. A single point is drawn as a dot with a whisker.

    `across`, `up`: axis labels. Tooltips read "update 40" if `across` is "update".
    `log`: logarithmic x axis, labeled at the values that occur.
    `marks`: reference values by name, drawn as dashed horizontal lines.
    """
    marks = marks or {}
    if not 1 <= len(series) <= len(svg.SERIES):
        raise ValueError(f"cannot draw {len(series)} series: expected 1 to {len(svg.SERIES)}")

    def paint(figure: "Figure") -> svg.Tooltips:
        axes = svg.plot_area(figure, left=76, right=_names_width([*series, *marks]), top=svg.TOP, bottom=60)
        axes.set(xlabel=readable(across, 60), ylabel=readable(up, 40))
        axes.margins(x=0.02, y=0.06)
        ends: list[End] = []
        for color, (name, unsorted) in zip(svg.SERIES, series.items()):
            points = sorted(unsorted, key=lambda point: point.x)
            x, mean, low, high = zip(*((each.x, each.mean, each.low, each.high) for each in points))
            axes.fill_between(x, low, high, facecolor=(color, 0.15), edgecolor=(color, 0.4), linewidth=1)
            axes.plot(x, mean, color=color)
            ends.append((x[-1], mean[-1], name, color))
            for each in points:
                values = [svg.number(float(f"{value:.4g}")) for value in (each.mean, each.low, each.high)]
                told = f"{values[0]} [{values[1]}, {values[2]}], {each.runs:,} run{'' if each.runs == 1 else 's'}"
                (dot,) = axes.plot(each.x, each.mean, "o", color=color)
                yield dot, f"{name}, {across} {svg.number(each.x)}: {told}"
        _scale_x(axes, [point.x for points in series.values() for point in points], log)
        for name, value in marks.items():
            axes.axhline(value, **svg.DASHED)
            ends.append((axes.get_xlim()[1], value, name, svg.QUIET))
        _write_names(axes, ends)

    height = max(_HEIGHT, _LINE * (len(series) + len(marks)))
    return svg.svg_file(title, subtitle, svg.TOP + height + 60, paint)


def _scale_x(axes: "Axes", values: Sequence[float], log: bool) -> None:
    """A logarithmic axis is labeled at the values that occur and have room; whole numbers have whole ticks."""
    if not log:
        axes.locator_params(axis="x", integer=all(x == int(x) for x in values))
        return
    axes.set_xscale("log", base=2)
    labeled: list[float] = []
    for x in sorted(set(values)):
        if not labeled or math.log(x / labeled[-1]) > 0.06 * math.log(max(values) / min(values)):
            labeled.append(x)
    axes.set_xticks(labeled, map(svg.number, labeled))
    axes.set_xticks([], minor=True)


def _names_width(names: Sequence[str]) -> float:
    """The width of the column of names beside a plot area."""
    return 40 + 8.5 * max(len(readable(name, _NAME)) for name in names)


def _write_names(axes: "Axes", ends: Sequence[End]) -> None:
    """Names in a column to the right of the plot area, without overlaps, each with a leader to its line or dot."""
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end[1])
    lines = np.arange(len(ordered)) * _LINE / axes.bbox.height
    wanted = np.array([(y - low) / (high - low) for _, y, _, _ in ordered])
    apart = np.maximum.accumulate(wanted - lines) + lines  # moved up until none overlap, then down until all fit
    for (x, y, name, color), height in zip(ordered, np.minimum(apart, 1 - lines[::-1])):
        leader = {"arrowstyle": "-", "color": color, "linestyle": (0, (1, 2)), "relpos": (0, 0.5)}
        style: dict[str, Any] = {"color": color, "weight": "normal" if color == svg.QUIET else "bold", "va": "center"}
        place = (1 + 22 / axes.bbox.width, height)
        axes.annotate(
            readable(name, _NAME), (x, y), place, textcoords="axes fraction", arrowprops=leader, size=svg.FONT, **style
        )


def forest_svg(
    title: str,
    rows: Sequence[Row],
    mark: float | None = None,
    *,
    width: float = svg.WIDTH,
    limits: tuple[float, float] | None = None,
) -> str:
    """One row per entry: mean and interval, small rings for seeds. `mark`: a dashed reference line."""
    labels, captions = width / 4, 16 + 7 * max(len(row.caption) for row in rows)

    def paint(figure: "Figure") -> svg.Tooltips:
        axes = svg.plot_area(figure, left=labels, right=captions, top=_ABOVE, bottom=_BELOW)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.margins(x=0.08)
        if mark is not None:
            axes.axvline(mark, **svg.DASHED)
        for y, row in enumerate(rows):
            yield _estimate(axes, row.interval, y, row.highlighted), f"{row.label}: {row.caption}"
            axes.plot(row.seeds, [y + 0.3] * len(row.seeds), "o", ms=5, color=svg.PAPER, mec=svg.QUIET)
            svg.write(figure, -1, _ABOVE + _ROW * (y + 0.5), row.caption, va="center")
        axes.set_yticks(range(len(rows)), [readable(row.label, int(labels / 7.5)) for row in rows], color=svg.INK)
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=limits)

    return svg.svg_element(title, width, _ABOVE + _ROW * len(rows) + _BELOW, paint)


def _estimate(axes: "Axes", interval: Interval, at: float, highlighted: bool, *, vertical: bool = False) -> "Artist":
    """The dot of a mean on the bar of its interval; hollow and gray if it is not highlighted."""
    bar, dot = ([interval.low, interval.high], [at, at]), ([interval.mean], [at])
    if vertical:
        bar, dot = bar[::-1], dot[::-1]
    color = ACCENT if highlighted else svg.RULE
    axes.plot(*bar, color=color, marker="_" if vertical else "|", mec=color)
    fill, edge = (color, svg.PAPER) if highlighted else (svg.PAPER, svg.QUIET)
    return axes.plot(*dot, "o", ms=9, color=fill, mec=edge)[0]


def scatter_svg(title: str, dots: Mapping[str, tuple[float, Interval]], across: str, up: str) -> str:
    """Scores with their intervals vs. their cost, by name. `across`, `up`: axis labels."""

    def paint(figure: "Figure") -> svg.Tooltips:
        axes = svg.plot_area(figure, left=64, right=_names_width([*dots]), top=14, bottom=50)
        axes.set(xlabel=across, ylabel=up)
        axes.margins(x=0.08, y=0.08)
        for name, (cost, score) in dots.items():
            told = f"{name}: {up} {score.mean:.3f}, {cost:,.0f} {across}"
            yield _estimate(axes, score, cost, highlighted=True, vertical=True), told
        axes.set_xlim(left=0)
        _write_names(axes, [(cost, score.mean, name, svg.QUIET) for name, (cost, score) in dots.items()])

    return svg.svg_element(title, svg.WIDTH, 64 + max(_HEIGHT, _LINE * len(dots)), paint)


def curve_svg(title: str, updates: Points, smooth: Points, dev: Points) -> str:
    """A learning curve: a line for training, faint if there is a smooth one, and dots for dev scores."""
    values = [value for _, value in (*updates, *dev)]
    low, high = min(values), max(values)
    padding = max(0.06 * (high - low), (_MIN_SPAN * max(abs(low), abs(high)) - (high - low)) / 2) or 1.0

    def paint(figure: "Figure") -> svg.Tooltips:
        axes = svg.plot_area(figure, left=56, right=16, top=8, bottom=24)
        axes.tick_params(length=0, pad=6)
        axes.locator_params(axis="x", nbins=4, integer=True)
        axes.locator_params(axis="y", nbins=4)
        faint: dict[str, Any] = {"color": ACCENT, "linewidth": 1, "alpha": 0.4}
        dashed: dict[str, Any] = {"color": svg.INK, "linewidth": 1.2, "linestyle": (0, (3, 3))}
        line = {"color": ACCENT}
        for points, style in ((updates, faint if smooth else line), (smooth, line), (dev, dashed)):
            axes.plot([step for step, _ in points], [value for _, value in points], **style)
        for step, value in dev:
            (dot,) = axes.plot(step, value, "o", ms=6.4, color=svg.INK)
            yield dot, f"update {svg.number(step)}: {value:.4g}"
        axes.set(xlim=(0, max(step for step, _ in (*updates, *dev, (1, 0)))), ylim=(low - padding, high + padding))

    return svg.svg_element(title, 280, 150, paint)
