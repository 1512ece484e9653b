"""The drawings of a comparison: points with their intervals below each other, and F1 against cost.

In: numbers with names. Out: an SVG to put into the page, whose style sheet gives it its colours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepladder.evaluate.prm.svg_axes import Axis, below, line, number, round_step, text, ticks, upright, xml
from stepladder.evaluate.statistics import Interval
from stepladder.reporting.charts.tree_layout import fit, length

#: A forest: its width, its columns of names and of numbers, a row, what is above and below the rows.
_WIDTH, _NAMES, _NUMBERS, _ROW, _TOP, _BOTTOM = 760.0, 190.0, 170.0, 28.0, 10.0, 34.0
#: The scatter: its size, and the room around it.
_ACROSS, _UP, _LEFT, _RIGHT, _ABOVE, _BELOW = 760.0, 380.0, 58.0, 20.0, 14.0, 52.0
#: Numbers on an axis, at most; sizes of fonts as of the style sheet.
_TICKS, _FONT, _SMALL = 8, 11.5, 10.5
#: What is free beside everything drawn, as a share of it.
_AIR = 0.08
#: The longest label beside a point.
_LONGEST = 150.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a forest."""

    label: str
    interval: Interval
    #: What is written at the right.
    told: str
    #: The same by seed, where there are several.
    seeds: tuple[float, ...] = ()
    #: Whether it is set off from the others.
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """One line of a scatter: what it costs, and what it scores."""

    label: str
    cost: float
    score: Interval


def forest_svg(title: str, rows: Sequence[Row], mark: float | None = None) -> str:
    """A row each: a point with its interval, small rings for seeds. `mark`: a dashed line to compare with."""
    ends = [value for row in rows for value in (row.interval.low, row.interval.high, *row.seeds)]
    across = _axis([*ends, *([] if mark is None else [mark])], _NAMES + 20, _WIDTH - _NUMBERS)
    step = round_step(across.high - across.low, _TICKS)
    bottom = _TOP + _ROW * len(rows)
    parts = [line(across(tick), _TOP, across(tick), bottom, "grid") for tick in ticks(across, step)]
    if mark is not None:
        parts.append(line(across(mark), _TOP, across(mark), bottom, "aim"))
    parts += [line(across.start, bottom, across.end, bottom, "rule"), *below(across, bottom, step)]
    for place, row in enumerate(rows):
        parts += _row(row, across, _TOP + _ROW * (place + 0.5))
    return _drawing(title, _WIDTH, bottom + _BOTTOM, parts)


def _row(row: Row, across: Axis, y: float) -> Iterator[str]:
    found = row.interval
    yield text(_NAMES, y + 4, fit(row.label, _NAMES - 4, 1, _FONT)[0], "end")
    yield f'<g class="{"model" if row.strong else "oracle"}"><title>{xml(f"{row.label}: {row.told}")}</title>'
    yield line(across(found.low), y, across(found.high), y, "whisker")
    yield from (line(across(end), y - 4, across(end), y + 4, "whisker") for end in (found.low, found.high))
    yield f'<circle class="dot" cx="{across(found.mean):.1f}" cy="{y:.1f}" r="4.5"/></g>'
    yield from (f'<circle class="seed" cx="{across(each):.1f}" cy="{y + 8:.1f}" r="2.6"/>' for each in row.seeds)
    yield text(_WIDTH, y + 4, row.told, "end")


def scatter_svg(title: str, dots: Sequence[Dot], across: str, up: str) -> str:
    """A score with its interval against a cost. `across`, `up`: labels of the axes."""
    along = _axis([dot.cost for dot in dots], _LEFT, _ACROSS - _RIGHT, least=0.0)
    upward = _axis([each for dot in dots for each in (dot.score.low, dot.score.high)], _UP - _BELOW, _ABOVE)
    step = round_step(upward.high - upward.low, _TICKS)
    parts = [
        *(line(_LEFT, upward(tick), _ACROSS - _RIGHT, upward(tick), "grid") for tick in ticks(upward, step)),
        *(text(_LEFT - 7, upward(tick) + 4, number(tick), "small end") for tick in ticks(upward, step)),
        line(_LEFT, _UP - _BELOW, _ACROSS - _RIGHT, _UP - _BELOW, "rule"),
        *below(along, _UP - _BELOW, round_step(along.high - along.low, _TICKS)),
        text((along.start + along.end) / 2, _UP - 8, across, "small middle"),
        upright(14, (upward.start + upward.end) / 2, up),
    ]
    places = [(along(dot.cost), upward(dot.score.mean)) for dot in dots]
    labels = _placed([fit(dot.label, _LONGEST, 1, _FONT)[0] for dot in dots], places)
    for dot, (x, y) in zip(dots, places, strict=True):
        tooltip = f"{dot.label}: {up} {dot.score.mean:.3f}, {dot.cost:,.0f} {across}"
        parts += [
            f'<g class="model"><title>{xml(tooltip)}</title>',
            line(x, upward(dot.score.low), x, upward(dot.score.high), "whisker thin"),
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="5"/></g>',
        ]
    return _drawing(title, _ACROSS, _UP, [*parts, *labels])


def _placed(labels: Sequence[str], places: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Labels beside their points: at the right, at the left, higher or lower, where they cover no other one."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    for label, (x, y) in zip(labels, places, strict=True):
        wide = length(label, _FONT)
        offers = [
            (x + side * 9 - (wide if side < 0 else 0), y + rise, "" if side > 0 else "end", side)
            for rise in (4.0, -8.0, 16.0, -20.0, 28.0)
            for side in (1, -1)
        ]
        boxes = [(left, base - 10, left + wide, base + 3) for left, base, _, _ in offers]
        free = [
            place
            for place, box in enumerate(boxes)
            if box[0] >= _LEFT and box[2] <= _ACROSS and not any(_overlap(box, other) for other in taken)
        ]
        best = free[0] if free else 0
        left, base, kind, side = offers[best]
        taken.append(boxes[best])
        yield text(left if side > 0 else left + wide, base, label, kind)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _axis(values: Sequence[float], start: float, end: float, least: float | None = None) -> Axis:
    """An axis with all values on it, and some air; from `least` on if given."""
    low, high = min(values), max(values)
    if least is not None:
        low = min(low, least)
    air = (high - low) * _AIR or 0.05
    return Axis(low if least is not None else low - air, high + air, start, end)


def _drawing(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="chart" {box} role="img" aria-label="{xml(title)}">{"".join(parts)}</svg>'
