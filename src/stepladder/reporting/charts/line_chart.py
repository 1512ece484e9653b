"""A learning curve: one metric by optimizer update, in training and on dev questions.

In: (update, value) points. Out: an SVG element for an HTML page, whose style sheet colors it.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from stepladder.core.svg import (
    Axis,
    escape_xml,
    grid_lines,
    inline_chart,
    line,
    number,
    polyline,
    text,
    tick_step,
    ticks,
)

#: (update, value)
Points = Sequence[tuple[float, float]]

#: Size of the chart, and the margins around the plot area.
_WIDTH, _HEIGHT = 280, 140
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 10.0, 8.0, 22.0
#: Maximum number of ticks on the axes.
_TICKS_UP, _TICKS_ACROSS = 4, 4
#: Minimum range of the y axis, as a share of the largest value: a small change looks small.
_MIN_SPAN = 0.3
#: Longer series are downsampled to this many points by averaging neighbors.
_MAX_POINTS = 160
#: Series of at least this many points get a smoothed line: a moving average over this share of them.
_MIN_SMOOTHED, _SMOOTHING_WINDOW = 24, 1 / 12


def curve_svg(title: str, updates: Points, dev: Points) -> str:
    """A line for training, dots for dev scores. Needs at least one point."""
    values = [value for _, value in (*updates, *dev)]
    steps = [step for step, _ in (*updates, *dev)]
    low, high = min(values), max(values)
    padding = max(0.06 * (high - low), (_MIN_SPAN * max(abs(low), abs(high)) - (high - low)) / 2) or 1.0
    up = Axis(low - padding, high + padding, _HEIGHT - _BOTTOM, _TOP)
    across = Axis(0, max(*steps, 1), _LEFT, _WIDTH - _RIGHT)
    parts = [*_frame(across, up)]
    if updates:
        downsampled = _downsampled(updates)
        smooth = _smoothed(downsampled)
        parts.append(_path(downsampled, across, up, "curve raw" if smooth else "curve"))
        parts += [_path(smooth, across, up, "curve")] if smooth else []
    if len(dev) > 1:
        parts.append(_path(dev, across, up, "curve dev"))
    parts += [
        f'<circle class="dot" cx="{across(step):.1f}" cy="{up(value):.1f}" r="3.2">'
        f"<title>{escape_xml(f'update {number(step)}: {value:.4g}')}</title></circle>"
        for step, value in dev
    ]
    return inline_chart(title, _WIDTH, _HEIGHT, parts)


def first_and_last(points: Points) -> tuple[float, float]:
    """The values at both ends of the drawn line: smoothed if the line is."""
    downsampled = _downsampled(points)
    drawn = _smoothed(downsampled) or downsampled
    return drawn[0][1], drawn[-1][1]


def _frame(across: Axis, up: Axis) -> Iterator[str]:
    yield from grid_lines(up, tick_step(up.high - up.low, _TICKS_UP), across.start, across.end, gap=6)
    yield line(across.start, up.start, across.end, up.start, "rule")
    for tick in ticks(across, max(tick_step(across.high - across.low, _TICKS_ACROSS), 1)):
        kind = "small end" if tick == across.high else "small middle"
        yield text(across(tick) + (4 if tick == across.high else 0), up.start + 15, number(tick), kind)


def _path(points: Points, across: Axis, up: Axis, kind: str) -> str:
    return f'<path class="{kind}" d="{polyline((across(step), up(value)) for step, value in points)}"/>'


def _downsampled(points: Points) -> Points:
    """At most `_MAX_POINTS` points, each the mean of its neighbors."""
    if len(points) <= _MAX_POINTS:
        return points
    groups = np.array_split(np.asarray(points, dtype=np.float64), _MAX_POINTS)
    return [(float(group[:, 0].mean()), float(group[:, 1].mean())) for group in groups]


def _smoothed(points: Points) -> Points:
    """A centered moving average; empty if there are too few points."""
    if len(points) < _MIN_SMOOTHED:
        return []
    reach = max(round(len(points) * _SMOOTHING_WINDOW / 2), 1)
    values = [value for _, value in points]
    return [
        (step, float(np.mean(values[max(index - reach, 0) : index + reach + 1])))
        for index, (step, _) in enumerate(points)
    ]
