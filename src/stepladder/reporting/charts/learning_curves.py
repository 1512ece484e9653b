"""The drawings of a report: a learning curve, and F1 by stage. The page's style sheet gives them their colours.

In: numbers. Out: an SVG to put into the page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stepladder.evaluate.prm.svg_axes import Axis, line, number, round_step, text, ticks, xml
from stepladder.evaluate.statistics import Interval
from stepladder.reporting.charts.tree_layout import fit

#: (updates made, value)
Points = Sequence[tuple[float, float]]

#: A learning curve: its size, and the room around it.
_WIDTH, _HEIGHT = 280, 140
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 10.0, 8.0, 22.0
#: Numbers on the axes, at most.
_TICKS_UP, _TICKS_ACROSS = 4, 4
#: What is in view, as a share of the largest value, at least.
_LEAST_SPAN = 0.3
#: More updates than this are drawn as means of neighbours.
_MOST_POINTS = 160
#: From so many updates on there is a second line, the mean over this share of them.
_SMOOTHED_FROM, _SMOOTHED_OVER = 24, 1 / 12

_STAGES_WIDTH, _STAGES_HEIGHT = 460.0, 230.0
_LABEL = 11.5


@dataclass(frozen=True, slots=True)
class Scored:
    """An evaluation in the drawing of all of them."""

    name: str
    f1: Interval
    #: Whether the gold decomposition was played, and no model.
    oracle: bool


def curve_svg(title: str, updates: Points, dev: Points) -> str:
    """A measure by the updates made: a line for training, dots for dev scores. At least one point must be given."""
    values = [value for _, value in (*updates, *dev)]
    steps = [step for step, _ in (*updates, *dev)]
    low, high = min(values), max(values)
    # At least so much is in view that a small change looks small.
    room = max(0.06 * (high - low), (_LEAST_SPAN * max(abs(low), abs(high)) - (high - low)) / 2) or 1.0
    up = Axis(low - room, high + room, _HEIGHT - _BOTTOM, _TOP)
    across = Axis(0, max(*steps, 1), _LEFT, _WIDTH - _RIGHT)
    parts = [*_frame(across, up)]
    if updates:
        thinned = _thinned(updates)
        smooth = _smoothed(thinned)
        parts.append(_path(thinned, across, up, "curve raw" if smooth else "curve"))
        parts += [_path(smooth, across, up, "curve")] if smooth else []
    if len(dev) > 1:
        parts.append(_path(dev, across, up, "curve dev"))
    parts += [
        f'<circle class="dot" cx="{across(step):.1f}" cy="{up(value):.1f}" r="3.2">'
        f"<title>{xml(f'update {number(step)}: {value:.4g}')}</title></circle>"
        for step, value in dev
    ]
    return _drawing(title, _WIDTH, _HEIGHT, parts)


def ends(points: Points) -> tuple[float, float]:
    """Where the line of a curve begins and ends: smoothed, if the line is."""
    thinned = _thinned(points)
    line_drawn = _smoothed(thinned) or thinned
    return line_drawn[0][1], line_drawn[-1][1]


def stages_svg(stages: Sequence[Scored]) -> str:
    """F1 of every evaluation with its interval; a line leads from model to model."""
    up = Axis(0, 1, _STAGES_HEIGHT - 30, 12)
    column = (_STAGES_WIDTH - 44) / len(stages)
    middles = [36 + column * (place + 0.5) for place in range(len(stages))]
    parts = [*_grid(up, 0.25, 36, _STAGES_WIDTH - 8)]
    models = [(x, up(each.f1.mean)) for x, each in zip(middles, stages) if not each.oracle]
    if len(models) > 1:
        parts.append(f'<path class="curve dev" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in models)}"/>')
    for x, each in zip(middles, stages):
        y = up(each.f1.mean)
        tooltip = f"{each.name}: F1 {each.f1.mean:.3f} [{each.f1.low:.3f}, {each.f1.high:.3f}]"
        kind = "oracle" if each.oracle else "model"
        parts += [
            f'<g class="{kind}"><title>{xml(tooltip)}</title>',
            line(x, up(each.f1.low), x, up(each.f1.high), "whisker"),
            *(line(x - 5, up(end), x + 5, up(end), "whisker") for end in (each.f1.low, each.f1.high)),
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/></g>',
            text(x + 9, y - 6, f"{each.f1.mean:.2f}"),
            text(x, _STAGES_HEIGHT - 10, fit(each.name, column - 4, 1, _LABEL)[0], "small middle"),
        ]
    return _drawing("F1 by stage", _STAGES_WIDTH, _STAGES_HEIGHT, parts)


def _drawing(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    box = f'viewBox="0 0 {width:g} {height:g}"'
    return f'<svg class="chart" {box} role="img" aria-label="{xml(title)}">{"".join(parts)}</svg>'


def _frame(across: Axis, up: Axis) -> Iterator[str]:
    yield from _grid(up, round_step(up.high - up.low, _TICKS_UP), across.start, across.end)
    yield line(across.start, up.start, across.end, up.start, "rule")
    for tick in ticks(across, max(round_step(across.high - across.low, _TICKS_ACROSS), 1)):
        kind = "small end" if tick == across.high else "small middle"
        yield text(across(tick) + (4 if tick == across.high else 0), up.start + 15, number(tick), kind)


def _grid(up: Axis, step: float, left: float, right: float) -> Iterator[str]:
    for tick in ticks(up, step):
        yield line(left, up(tick), right, up(tick), "grid")
        yield text(left - 6, up(tick) + 4, number(tick), "small end")


def _path(points: Points, across: Axis, up: Axis, kind: str) -> str:
    places = "L".join(f"{across(step):.1f} {up(value):.1f}" for step, value in points)
    return f'<path class="{kind}" d="M{places}"/>'


def _thinned(points: Points) -> Points:
    """At most so many points: each the mean of its neighbours."""
    if len(points) <= _MOST_POINTS:
        return points
    groups = np.array_split(np.asarray(points, dtype=np.float64), _MOST_POINTS)
    return [(float(group[:, 0].mean()), float(group[:, 1].mean())) for group in groups]


def _smoothed(points: Points) -> Points:
    """The mean around every point; nothing where there are too few for that."""
    if len(points) < _SMOOTHED_FROM:
        return []
    reach = max(round(len(points) * _SMOOTHED_OVER / 2), 1)
    values = [value for _, value in points]
    return [
        (step, float(np.mean(values[max(place - reach, 0) : place + reach + 1])))
        for place, (step, _) in enumerate(points)
    ]
