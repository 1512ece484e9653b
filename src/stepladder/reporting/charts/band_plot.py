"""A line chart of repeated runs: the mean of each series, with a band for its interval.

In: series of `Point`s by name. Out: a self-contained SVG with light and dark styles.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from stepladder.core.svg import (
    BOLD,
    FONT,
    MARGIN,
    SERIES,
    SMALL,
    TOP,
    WIDTH,
    Axis,
    chart_page,
    escape_xml,
    fit_text,
    grid_lines,
    line,
    number,
    polyline,
    text,
    text_width,
    tick_labels,
    tick_step,
    ticks,
    vertical_text,
)

#: Minimum height of the plot area; it grows with the number of labels.
_HEIGHT = 320.0
#: Padding above and below the data, as a share of its range.
_PADDING = 0.06
#: Distance of the first and last points from the sides of the plot area.
_INSET = 12.0
#: Maximum number of ticks; minimum pixels between the tick labels of a logarithmic axis.
_TICKS_UP, _TICKS_ACROSS, _TICK_GAP = 8, 9, 10.0
#: Labels at the right: distance from the plot area, maximum width, line height, length of the stroke before each.
_LABEL_GAP, _MAX_LABEL, _LINE, _STROKE = 44, 200, 18.0, 16.0


@dataclass(frozen=True, slots=True)
class Point:
    """The result of repeated runs at one x: mean and interval."""

    x: float
    mean: float
    low: float
    high: float
    runs: int


#: The points of a series from left to right, each with its x pixel.
PlacedPoints = Sequence[tuple[float, Point]]


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
    _check(series, marks, log)
    points = [point for each in series.values() for point in each]

    height = max(_HEIGHT, _LINE * (len(series) + len(marks) - 1))
    bottom = TOP + height
    low, high = _range([y for each in points for y in (each.mean, each.low, each.high)] + [*marks.values()], _PADDING)
    upward = Axis(low, high, bottom, TOP)
    step = tick_step(high - low, _TICKS_UP)

    longest = max([text_width(name, FONT * BOLD) for name in series] + [text_width(name, SMALL) for name in marks])
    left = MARGIN + 28 + max(text_width(number(tick), SMALL) for tick in ticks(upward, step))
    # Whole pixels, so that the longest label exactly fits.
    right = WIDTH - MARGIN - min(math.ceil(longest), _MAX_LABEL) - _LABEL_GAP
    along = Axis(*_range([_scaled(each.x, log) for each in points], 0), left + _INSET, right - _INSET)
    placed = {
        name: [(along(_scaled(each.x, log)), each) for each in sorted(points, key=lambda point: point.x)]
        for name, points in series.items()
    }

    parts = [
        *grid_lines(upward, step, left, right, gap=8),
        line(left, bottom, right, bottom, "rule"),
        *_x_labels(along, bottom, {each.x for each in points}, log),
        vertical_text(MARGIN + 8, (TOP + bottom) / 2, fit_text(up, height, 1, FONT)[0]),
        text((left + right) / 2, bottom + 40, fit_text(across, right - left, 1, FONT)[0], "quiet middle"),
        *(_band(f"s{index}", each, upward) for index, each in enumerate(placed.values())),
        *_labels(placed, marks, upward, left, right),
    ]
    digits = 1 - math.floor(math.log10(step))
    for index, (name, each) in enumerate(placed.items()):
        parts += _curve(f"s{index}", each, upward, f"{name}, {across}", digits)
    return chart_page(title, subtitle, bottom + 60, parts)


def _check(series: Mapping[str, Sequence[Point]], marks: Mapping[str, float], log: bool) -> None:
    if not 1 <= len(series) <= len(SERIES):
        raise ValueError(f"cannot draw {len(series)} series: expected 1 to {len(SERIES)}")
    for name, points in series.items():
        if not points:
            raise ValueError(f"series {name!r} has no points: expected at least one")
        for point in points:
            if not all(map(math.isfinite, (point.x, point.mean, point.low, point.high))):
                raise ValueError(f"series {name!r} has {point}: expected finite numbers")
            if log and point.x <= 0:
                raise ValueError(f"series {name!r} has a point at x = {point.x}: a logarithmic axis needs x > 0")
    for name, value in marks.items():
        if not math.isfinite(value):
            raise ValueError(f"mark {name!r} is at {value}: expected a finite number")


def _range(values: Sequence[float], padding: float) -> tuple[float, float]:
    """The range of the values with padding, wide enough for different tick labels."""
    low, high = min(values), max(values)
    min_span = max(0.01 * max(abs(low), abs(high)), 1e-6)
    extra = max(padding * (high - low), (min_span - (high - low)) / 2)
    return low - extra, high + extra


def _scaled(x: float, log: bool) -> float:
    return math.log2(x) if log else x


def _x_labels(along: Axis, y: float, values: Iterable[float], log: bool) -> Iterator[str]:
    """The tick labels of the x axis. If all values are whole numbers, such as updates, so are the ticks."""
    if not log:
        step = tick_step(along.high - along.low, _TICKS_ACROSS)
        yield from tick_labels(along, y, max(step, 1.0) if all(x == int(x) for x in values) else step)
        return
    free = -math.inf
    for x in sorted(values):
        middle, half = along(math.log2(x)), text_width(number(x), SMALL) / 2
        if middle - half >= free:
            yield line(middle, y, middle, y + 5, "rule")
            yield text(middle, y + 19, number(x), "small middle")
            free = middle + half + _TICK_GAP


def _band(color: str, points: PlacedPoints, up: Axis) -> str:
    """The area between low and high. Its thin outline keeps the band of a single point visible."""
    outline = [(x, up(each.high)) for x, each in points] + [(x, up(each.low)) for x, each in reversed(points)]
    style = 'fill="currentColor" fill-opacity="0.15" stroke="currentColor" stroke-opacity="0.35"'
    return f'<path class="band {color}" {style} d="{polyline(outline)}Z"/>'


def _curve(color: str, points: PlacedPoints, up: Axis, name: str, digits: int) -> Iterator[str]:
    """The line through the means, and a dot with a tooltip at each."""
    yield f'<path class="curve {color}" d="{polyline((x, up(each.mean)) for x, each in points)}"/>'
    for x, each in points:
        # Adding 0 removes the minus of a value that was rounded to -0.
        mean, low, high = (number(round(value, digits) + 0.0) for value in (each.mean, each.low, each.high))
        runs = "1 run" if each.runs == 1 else f"{each.runs:,} runs"
        tooltip = f"{name} {number(each.x)}: {mean} [{low}, {high}], {runs}"
        circle = f'cx="{x:.1f}" cy="{up(each.mean):.1f}" r="4"'
        yield f'<circle class="dot {color}" {circle}><title>{escape_xml(tooltip)}</title></circle>'


def _labels(
    placed: Mapping[str, PlacedPoints], marks: Mapping[str, float], up: Axis, left: float, right: float
) -> Iterator[str]:
    """The names of series and marks in one column without overlaps, and a leader line to each."""
    ends = [(points[-1][0], up(points[-1][1].mean)) for points in placed.values()]
    ends += [(left, up(value)) for value in marks.values()]
    column, width = right + _LABEL_GAP, WIDTH - MARGIN - right - _LABEL_GAP
    stroke = column - 6 - _STROKE
    heights = _spread([y for _, y in ends], up.end, up.start)
    leaders = [polyline([(x, y), (right, y), (stroke, height)]) for (x, y), height in zip(ends, heights)]
    for index, (name, leader, y) in enumerate(zip(placed, leaders, heights)):
        style = 'fill="none" stroke="currentColor" stroke-opacity="0.8" stroke-dasharray="1.5 2.5"'
        yield f'<path class="s{index}" {style} d="{leader}"/>'
        yield line(stroke, y, stroke + _STROKE, y, f"curve s{index}")
        yield text(column, y + 4.5, fit_text(name, width, 1, FONT * BOLD)[0], "name")
    for name, leader, y in zip(marks, leaders[len(placed) :], heights[len(placed) :]):
        yield f'<path class="aim" d="{leader}L{stroke + _STROKE:.1f} {y:.1f}"/>'
        yield text(column, y + 4, fit_text(name, width, 1, SMALL)[0], "small")


def _spread(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights at least one line apart, in the same order, as close to the wanted ones as possible.

    >>> _spread([50.0, 90.0, 50.0], top=0, bottom=100)
    [41.0, 90.0, 59.0]
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    count = len(order)
    # After subtracting the line heights, the result only has to be monotone: isotonic regression (min-max formula).
    relaxed = [wanted[index] - _LINE * rank for rank, index in enumerate(order)]
    heights = [0.0] * count
    for rank, index in enumerate(order):
        fitted = max(min(fmean(relaxed[first : last + 1]) for last in range(rank, count)) for first in range(rank + 1))
        heights[index] = min(max(fitted, top), bottom - _LINE * (count - 1)) + _LINE * rank
    return heights
