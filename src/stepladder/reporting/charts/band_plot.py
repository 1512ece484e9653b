"""A picture of repeated runs: the mean of each kind of run as a line, and around it the band in which the runs lie.

In: series of `Point`s by their names. Out: a self-contained SVG that any browser shows, in light and in dark.
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
    below,
    line,
    number,
    page,
    text,
    tick_step,
    ticks,
    upright,
    xml,
)
from stepladder.reporting.charts.tree_layout import fit, length

#: Height of what is drawn, unless more labels have to stand beside it.
_HEIGHT = 320.0
#: What is free above and below everything drawn, as a share of it.
_AIR = 0.06
#: The first and last points stand this far from the frame's sides.
_INSET = 12.0
#: Numbers on the axes, at most; between those of a logarithmic one at least so many pixels.
_TICKS_UP, _TICKS_ACROSS, _BETWEEN = 8, 9, 10.0
#: The labels at the right: from the frame to them, the longest, from one to the next, and the stroke before each.
_TO_LABEL, _LONGEST, _LINE, _STROKE = 44, 200, 18.0, 16.0


@dataclass(frozen=True, slots=True)
class Point:
    """What repeated runs came to at one place."""

    x: float
    mean: float
    low: float
    high: float
    runs: int


#: The points of a series from left to right, each with its pixel across.
Placed = Sequence[tuple[float, Point]]


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
    """One line and band a series, its name at its right end. Of a single point there is a dot with a whisker.

    `across`, `up`: labels of the axes. Tooltips say "update 40" where `across` is "update".
    `log`: x grows by factors, and its numbers are those that occur.
    `marks`: values to compare with, by their names: dashed lines from side to side.
    """
    marks = marks or {}
    _check(series, marks, log)
    everything = [point for points in series.values() for point in points]

    height = max(_HEIGHT, _LINE * (len(series) + len(marks) - 1))
    bottom = TOP + height
    low, high = _range([y for each in everything for y in (each.mean, each.low, each.high)] + [*marks.values()], _AIR)
    upward = Axis(low, high, bottom, TOP)
    step = tick_step(high - low, _TICKS_UP)
    heights = ticks(upward, step)

    longest = max([length(name, FONT * BOLD) for name in series] + [length(name, SMALL) for name in marks])
    left = MARGIN + 28 + max(length(number(tick), SMALL) for tick in heights)
    # Whole pixels, so that the longest label finds exactly the room it needs.
    right = WIDTH - MARGIN - min(math.ceil(longest), _LONGEST) - _TO_LABEL
    along = Axis(*_range([_scaled(each.x, log) for each in everything], 0), left + _INSET, right - _INSET)
    placed = {
        name: [(along(_scaled(each.x, log)), each) for each in sorted(points, key=lambda point: point.x)]
        for name, points in series.items()
    }

    parts = [
        *(line(left, upward(tick), right, upward(tick), "grid") for tick in heights),
        *(text(left - 8, upward(tick) + 4, number(tick), "small end") for tick in heights),
        line(left, bottom, right, bottom, "rule"),
        *_below(along, bottom, {each.x for each in everything}, log),
        upright(MARGIN + 8, (TOP + bottom) / 2, fit(up, height, 1, FONT)[0]),
        text((left + right) / 2, bottom + 40, fit(across, right - left, 1, FONT)[0], "quiet middle"),
        *(_band(f"s{place}", points, upward) for place, points in enumerate(placed.values())),
        *_labels(placed, marks, upward, left, right),
    ]
    digits = 1 - math.floor(math.log10(step))
    for place, (name, points) in enumerate(placed.items()):
        parts += _curve(f"s{place}", points, upward, f"{name}, {across}", digits)
    return page(title, subtitle, bottom + 60, parts)


def _check(series: Mapping[str, Sequence[Point]], marks: Mapping[str, float], log: bool) -> None:
    if not 1 <= len(series) <= len(SERIES):
        raise ValueError(f"there are {len(series)} series to draw; 1 to {len(SERIES)} can be told apart")
    for name, points in series.items():
        if not points:
            raise ValueError(f"series {name!r} has no points; leave it out, or give it at least one")
        for point in points:
            if not all(map(math.isfinite, (point.x, point.mean, point.low, point.high))):
                raise ValueError(f"series {name!r} has {point}; all of it must be finite numbers")
            if log and point.x <= 0:
                raise ValueError(f"series {name!r} has a point at x = {point.x}; a logarithmic axis begins above 0")
    for name, value in marks.items():
        if not math.isfinite(value):
            raise ValueError(f"mark {name!r} is at {value}; it must be a finite number")


def _range(values: Sequence[float], air: float) -> tuple[float, float]:
    """From below the smallest to above the largest; wide enough that the numbers on the axis differ."""
    low, high = min(values), max(values)
    least = max(0.01 * max(abs(low), abs(high)), 1e-6)
    room = max(air * (high - low), (least - (high - low)) / 2)
    return low - room, high + room


def _scaled(x: float, log: bool) -> float:
    return math.log2(x) if log else x


def _below(along: Axis, y: float, occurring: Iterable[float], log: bool) -> Iterator[str]:
    """The numbers below the frame. Between whole numbers, such as updates, there are no fractions."""
    if not log:
        step = tick_step(along.high - along.low, _TICKS_ACROSS)
        yield from below(along, y, max(step, 1.0) if all(x == int(x) for x in occurring) else step)
        return
    free = -math.inf
    for x in sorted(occurring):
        middle, half = along(math.log2(x)), length(number(x), SMALL) / 2
        if middle - half >= free:
            yield line(middle, y, middle, y + 5, "rule")
            yield text(middle, y + 19, number(x), "small middle")
            free = middle + half + _BETWEEN


def _band(colour: str, points: Placed, up: Axis) -> str:
    """What lies between low and high. The thin edge is all there is to see of the band of a single point."""
    edge = [(x, up(each.high)) for x, each in points] + [(x, up(each.low)) for x, each in reversed(points)]
    look = 'fill="currentColor" fill-opacity="0.15" stroke="currentColor" stroke-opacity="0.35"'
    return f'<path class="band {colour}" {look} d="{_path(edge)}Z"/>'


def _curve(colour: str, points: Placed, up: Axis, named: str, digits: int) -> Iterator[str]:
    """The line through the means, and a dot at each that tells its numbers when it is pointed at."""
    yield f'<path class="curve {colour}" d="{_path((x, up(each.mean)) for x, each in points)}"/>'
    for x, each in points:
        # Adding 0 takes the minus from what was rounded to 0.
        mean, low, high = (number(round(value, digits) + 0.0) for value in (each.mean, each.low, each.high))
        runs = "1 run" if each.runs == 1 else f"{each.runs:,} runs"
        tooltip = f"{named} {number(each.x)}: {mean} [{low}, {high}], {runs}"
        spot = f'cx="{x:.1f}" cy="{up(each.mean):.1f}" r="4"'
        yield f'<circle class="dot {colour}" {spot}><title>{xml(tooltip)}</title></circle>'


def _labels(
    placed: Mapping[str, Placed], marks: Mapping[str, float], up: Axis, left: float, right: float
) -> Iterator[str]:
    """The names of series and marks, all in one column so that none hides another, and what leads to each."""
    ends = [(points[-1][0], up(points[-1][1].mean)) for points in placed.values()]
    ends += [(left, up(value)) for value in marks.values()]
    column, room = right + _TO_LABEL, WIDTH - MARGIN - right - _TO_LABEL
    stroke = column - 6 - _STROKE
    heights = _apart([y for _, y in ends], up.end, up.start)
    ways = [_path([(x, y), (right, y), (stroke, height)]) for (x, y), height in zip(ends, heights)]
    for place, (name, way, y) in enumerate(zip(placed, ways, heights)):
        look = 'fill="none" stroke="currentColor" stroke-opacity="0.8" stroke-dasharray="1.5 2.5"'
        yield f'<path class="s{place}" {look} d="{way}"/>'
        yield line(stroke, y, stroke + _STROKE, y, f"curve s{place}")
        yield text(column, y + 4.5, fit(name, room, 1, FONT * BOLD)[0], "name")
    for name, way, y in zip(marks, ways[len(placed) :], heights[len(placed) :]):
        yield f'<path class="aim" d="{way}L{stroke + _STROKE:.1f} {y:.1f}"/>'
        yield text(column, y + 4, fit(name, room, 1, SMALL)[0], "small")


def _apart(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights a line or more from each other, in the same order, as near to the wanted ones as can be.

    >>> _apart([50.0, 90.0, 50.0], top=0, bottom=100)
    [41.0, 90.0, 59.0]
    """
    order = sorted(range(len(wanted)), key=lambda place: wanted[place])
    count = len(order)
    # Less their lines, the heights need only not fall: isotonic regression, by its min-max formula.
    loose = [wanted[place] - _LINE * rank for rank, place in enumerate(order)]
    heights = [0.0] * count
    for rank, place in enumerate(order):
        fair = max(min(fmean(loose[first : last + 1]) for last in range(rank, count)) for first in range(rank + 1))
        heights[place] = min(max(fair, top), bottom - _LINE * (count - 1)) + _LINE * rank
    return heights


def _path(corners: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners)
