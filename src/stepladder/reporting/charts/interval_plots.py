"""Charts of means with their intervals: a forest plot, a scatter plot of score vs. cost, and F1 by stage.

In: labeled numbers. Out: an SVG element for an HTML page, whose style sheet colors it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stepladder.core.svg import (
    Axis,
    escape_xml,
    fit_text,
    grid_lines,
    inline_chart,
    line,
    polyline,
    text,
    text_width,
    tick_labels,
    tick_step,
    ticks,
    vertical_text,
)
from stepladder.evaluation.statistics import Interval

#: Forest plot: total width, width of the label and number columns, row height, space above and below the rows.
_WIDTH, _LABELS, _NUMBERS, _ROW, _TOP, _BOTTOM = 760.0, 190.0, 170.0, 28.0, 10.0, 34.0
#: Scatter plot: total size, and the margins around it.
_ACROSS, _UP, _LEFT, _RIGHT, _ABOVE, _BELOW = 760.0, 380.0, 58.0, 20.0, 14.0, 52.0
#: Size of the chart of F1 by stage.
_STAGES_WIDTH, _STAGES_HEIGHT = 460.0, 230.0
#: Maximum number of ticks; font size of the style sheet.
_TICKS, _FONT = 8, 11.5
#: Padding on both sides of the data, as a share of its range.
_PADDING = 0.08
#: Maximum width of a label beside a point.
_MAX_LABEL = 150.0


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


@dataclass(frozen=True, slots=True)
class Dot:
    """One point of a scatter plot: cost and score."""

    label: str
    cost: float
    score: Interval


@dataclass(frozen=True, slots=True)
class StageScore:
    """One evaluation in the chart of F1 by stage."""

    name: str
    f1: Interval
    #: Whether the oracle was evaluated and not a model.
    oracle: bool


def forest_svg(title: str, rows: Sequence[Row], mark: float | None = None) -> str:
    """One row per entry: mean and interval, small rings for seeds. `mark`: a dashed reference line."""
    ends = [value for row in rows for value in (row.interval.low, row.interval.high, *row.seeds)]
    across = _axis([*ends, *([] if mark is None else [mark])], _LABELS + 20, _WIDTH - _NUMBERS)
    step = tick_step(across.high - across.low, _TICKS)
    bottom = _TOP + _ROW * len(rows)
    parts = [line(across(tick), _TOP, across(tick), bottom, "grid") for tick in ticks(across, step)]
    if mark is not None:
        parts.append(line(across(mark), _TOP, across(mark), bottom, "aim"))
    parts += [line(across.start, bottom, across.end, bottom, "rule"), *tick_labels(across, bottom, step)]
    for index, row in enumerate(rows):
        parts += _row(row, across, _TOP + _ROW * (index + 0.5))
    return inline_chart(title, _WIDTH, bottom + _BOTTOM, parts)


def _row(row: Row, across: Axis, y: float) -> Iterator[str]:
    yield text(_LABELS, y + 4, fit_text(row.label, _LABELS - 4, 1, _FONT)[0], "end")
    low, mean, high = (across(each) for each in (row.interval.low, row.interval.mean, row.interval.high))
    bars = [line(low, y, high, y, "whisker"), *(line(end, y - 4, end, y + 4, "whisker") for end in (low, high))]
    yield _marker(row.highlighted, f"{row.label}: {row.caption}", bars, mean, y)
    yield from (f'<circle class="seed" cx="{across(each):.1f}" cy="{y + 8:.1f}" r="2.6"/>' for each in row.seeds)
    yield text(_WIDTH, y + 4, row.caption, "end")


def stages_svg(stages: Sequence[StageScore]) -> str:
    """F1 of every evaluation with its interval. A dashed line connects the models."""
    up = Axis(0, 1, _STAGES_HEIGHT - 30, 20)
    column = (_STAGES_WIDTH - 44) / len(stages)
    centers = [36 + column * (index + 0.5) for index in range(len(stages))]
    parts = [*grid_lines(up, 0.25, 36, _STAGES_WIDTH - 8, gap=6)]
    models = [(x, up(each.f1.mean)) for x, each in zip(centers, stages) if not each.oracle]
    if len(models) > 1:
        parts.append(f'<path class="curve dev" d="{polyline(models)}"/>')
    for x, each in zip(centers, stages):
        low, y, high = (up(value) for value in (each.f1.low, each.f1.mean, each.f1.high))
        bars = [line(x, low, x, high, "whisker"), *(line(x - 5, end, x + 5, end, "whisker") for end in (low, high))]
        tooltip = f"{each.name}: F1 {each.f1.mean:.3f} [{each.f1.low:.3f}, {each.f1.high:.3f}]"
        parts += [
            _marker(not each.oracle, tooltip, bars, x, y),
            text(x + 9, y - 6, f"{each.f1.mean:.2f}"),
            text(x, _STAGES_HEIGHT - 10, fit_text(each.name, column - 4, 1, _FONT)[0], "small middle"),
        ]
    return inline_chart("F1 by stage", _STAGES_WIDTH, _STAGES_HEIGHT, parts)


def _marker(highlighted: bool, tooltip: str, bars: Sequence[str], x: float, y: float, radius: float = 4.5) -> str:
    """A dot on its error bars, with a tooltip."""
    kind = "model" if highlighted else "oracle"
    dot = f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>'
    return f'<g class="{kind}"><title>{escape_xml(tooltip)}</title>{"".join(bars)}{dot}</g>'


def scatter_svg(title: str, dots: Sequence[Dot], across: str, up: str) -> str:
    """A score with its interval vs. a cost. `across`, `up`: axis labels."""
    along = _axis([dot.cost for dot in dots], _LEFT, _ACROSS - _RIGHT, lower_bound=0.0)
    upward = _axis([each for dot in dots for each in (dot.score.low, dot.score.high)], _UP - _BELOW, _ABOVE)
    parts = [
        *grid_lines(upward, tick_step(upward.high - upward.low, _TICKS), _LEFT, _ACROSS - _RIGHT, gap=7),
        line(_LEFT, _UP - _BELOW, _ACROSS - _RIGHT, _UP - _BELOW, "rule"),
        *tick_labels(along, _UP - _BELOW, tick_step(along.high - along.low, _TICKS)),
        text((along.start + along.end) / 2, _UP - 8, across, "small middle"),
        vertical_text(14, (upward.start + upward.end) / 2, up),
    ]
    points = [(along(dot.cost), upward(dot.score.mean)) for dot in dots]
    labels = _labels([fit_text(dot.label, _MAX_LABEL, 1, _FONT)[0] for dot in dots], points)
    for dot, (x, y) in zip(dots, points, strict=True):
        tooltip = f"{dot.label}: {up} {dot.score.mean:.3f}, {dot.cost:,.0f} {across}"
        bar = line(x, upward(dot.score.low), x, upward(dot.score.high), "whisker thin")
        parts.append(_marker(True, tooltip, [bar], x, y, 5))
    return inline_chart(title, _ACROSS, _UP, [*parts, *labels])


def _labels(labels: Sequence[str], points: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Labels beside their points: right or left, higher or lower, at the first position that covers nothing else."""
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in points]
    for label, (x, y) in zip(labels, points, strict=True):
        width = text_width(label, _FONT)
        candidates = [
            (x + side * 9 - (width if side < 0 else 0), y + rise, "" if side > 0 else "end", side)
            for rise in (4.0, -8.0, 16.0, -20.0, 28.0)
            for side in (1, -1)
        ]
        boxes = [(left, base - 10, left + width, base + 3) for left, base, _, _ in candidates]
        free = [
            index
            for index, box in enumerate(boxes)
            if box[0] >= _LEFT and box[2] <= _ACROSS and not any(_overlap(box, other) for other in taken)
        ]
        best = free[0] if free else 0
        left, base, kind, side = candidates[best]
        taken.append(boxes[best])
        yield text(left if side > 0 else left + width, base, label, kind)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _axis(values: Sequence[float], start: float, end: float, lower_bound: float | None = None) -> Axis:
    """An axis that covers all values with some padding; it starts at `lower_bound` if given."""
    low, high = min(values), max(values)
    if lower_bound is not None:
        low = min(low, lower_bound)
    padding = (high - low) * _PADDING or 0.05
    return Axis(low if lower_bound is not None else low - padding, high + padding, start, end)
