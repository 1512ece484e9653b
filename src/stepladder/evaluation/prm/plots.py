"""Two charts of a reward model: score distributions, and a reliability diagram.

In: scores or probabilities of steps. Out: self-contained SVG files with light and dark styles.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stepladder.core.svg import (
    BOLD,
    FONT,
    MARGIN,
    SERIES,
    SMALL,
    TOP,
    WIDTH,
    Axis,
    bar,
    chart_page,
    escape_xml,
    fit_text,
    line,
    number,
    text,
    tick_labels,
    tick_step,
    ticks,
    vertical_text,
)
from stepladder.evaluation.prm.ranking import Bin, brier, calibration_error, reliability
from stepladder.evaluation.statistics import Values

#: Colors of scores below 0, and of the others.
_BELOW, _ABOVE = "s0", "s1"
#: Height of a row of the distributions, and of its highest bar.
_ROW, _BAR = 64.0, 50.0
#: Pixels of the columns of numbers on the right.
_COLUMNS = (WIDTH - MARGIN - 122, WIDTH - MARGIN - 62, WIDTH - MARGIN)
#: Maximum number of ticks on the axis, and of bars.
_TICKS, _BARS = 9, 60
#: Side of the square of a reliability diagram, and height of the histogram below it.
_SIDE, _COUNTS = 384.0, 64.0


def distributions_svg(
    title: str,
    groups: Mapping[str, Sequence[float]],
    *,
    axis: str = "score of a step",
    counted: str = "steps",
    subtitle: str = "",
) -> str:
    """One histogram per group on a common axis, with the median and the share of scores at 0 or above.

    `counted`: the unit that each score belongs to.
    """
    values = {name: _finite(name, scores) for name, scores in groups.items()}
    everything = np.concatenate([*values.values(), np.zeros(1)])
    if len(everything) == 1:
        raise ValueError("nothing to draw: at least one group with at least one score is needed")
    span = max(float(np.ptp(everything)), 1e-6)
    # Bars start at multiples of their width, so that none contains scores from both sides of 0.
    width, step = tick_step(span, _BARS), tick_step(span, _TICKS)
    first, last = int(min(everything.min() // width, -1)), int(max(everything.max() // width, 0))
    across = Axis(first * width, (last + 1) * width, MARGIN + 128, _COLUMNS[0] - 44)
    top = TOP + 16
    bottom = top + _ROW * len(values)
    parts = [
        *(text(x, TOP, words, "small end") for x, words in zip(_COLUMNS, (counted, "median", "≥ 0"))),
        *(line(across(tick), top, across(tick), bottom, "grid") for tick in ticks(across, step)),
        line(across(0), top, across(0), bottom, "aim"),
    ]
    for row, (name, scores) in enumerate(values.items(), start=1):
        parts += _row(name, scores, across, width, top + _ROW * row)
    parts += [
        *tick_labels(across, bottom, step),
        text((across.start + across.end) / 2, bottom + 40, axis, "quiet middle"),
        line(MARGIN + 2, bottom + 55, MARGIN + 2, bottom + 67, "median"),
        text(MARGIN + 10, bottom + 65, "median. Bars are scaled per row.", "small"),
    ]
    return chart_page(title, subtitle, bottom + 86, parts)


def _finite(name: str, scores: Sequence[float]) -> Values:
    values = np.asarray(scores, dtype=np.float64)
    for position in np.flatnonzero(~np.isfinite(values)).tolist():
        raise ValueError(f"score {position} of {name!r} is {scores[position]}; it must be a finite number")
    return values


def _row(name: str, values: Values, across: Axis, width: float, base: float) -> Iterator[str]:
    """The histogram of a group above its base line, scaled to its highest bar."""
    words = fit_text(name, across.start - MARGIN - 14, 2, FONT * BOLD)
    for index, each in enumerate(words):
        yield text(MARGIN, base - 14 - 16 * (len(words) - 1 - index), each, "name")
    first = round(across.low / width)
    counts = np.bincount((values // width).astype(np.int64) - first) if len(values) else np.zeros(0, dtype=np.int64)
    for index, count in enumerate(counts.tolist()):
        if count:
            low, high = (first + index) * width, (first + index + 1) * width
            height = max(_BAR * count / int(counts.max()), 1.0)
            tooltip = f"{name}: {count:,} of {len(values):,} from {number(low)} to {number(high)}"
            kind = _BELOW if first + index < 0 else _ABOVE
            yield bar(across(low) + 0.4, base - height, across(high) - across(low) - 0.8, height, kind, tooltip)
    yield line(across.start, base, across.end, base, "rule")
    numbers = [f"{len(values):,}", "–", "–"]
    if len(values):
        median = float(np.median(values))
        numbers[1:] = [f"{median:.2f}".replace("-", "−"), f"{(values >= 0).mean():.1%}"]
        yield line(across(median), base, across(median), base - _BAR - 3, "median")
    for x, each in zip(_COLUMNS, numbers):
        yield text(x, base - 14, each, "number end")


def reliability_svg(
    title: str,
    probabilities: Mapping[str, Sequence[float]],
    labels: Sequence[bool],
    *,
    bins: int = 10,
    subtitle: str = "",
) -> str:
    """Reliability diagram: predicted probability against the share of good steps, one line per predictor.

    `probabilities`: predictions for the same steps by name, such as raw and after Platt scaling.
    """
    if not 1 <= len(probabilities) <= len(SERIES):
        raise ValueError(f"{len(probabilities)} predictors given; 1 to {len(SERIES)} can be drawn")
    curves = {name: reliability(predicted, labels, bins) for name, predicted in probabilities.items()}
    largest = max(each.count for curve in curves.values() for each in curve)
    left = MARGIN + 52
    across = Axis(0, 1, left, left + _SIDE)
    up = Axis(0, 1, TOP + _SIDE, TOP)
    base = TOP + _SIDE + 28 + _COUNTS
    parts = [*_square(across, up)]
    for index, (name, curve) in enumerate(curves.items()):
        parts += _curve(index, curve, across, up, largest)
        parts += _counts(index, len(curves), name, curve, across, base, largest)
    parts += [
        line(left, base, left + _SIDE, base, "rule"),
        text(left - 10, base - _COUNTS + 8, f"{largest:,}", "small end"),
        text(left - 10, base, "0", "small end"),
        vertical_text(MARGIN + 8, base - _COUNTS / 2, "steps"),
        *tick_labels(across, base, 0.2),
        text(left + _SIDE / 2, base + 40, "predicted probability that a step is good", "quiet middle"),
        *_legend(probabilities, labels, bins, left + _SIDE + 36),
    ]
    return chart_page(title, subtitle, base + 60, parts)


def _square(across: Axis, up: Axis) -> Iterator[str]:
    """The frame, with the diagonal of perfect calibration."""
    for tick in ticks(across, 0.2):
        yield line(across(tick), up.start, across(tick), up.end, "grid")
        yield line(across.start, up(tick), across.end, up(tick), "grid")
        yield text(across.start - 10, up(tick) + 4, number(tick), "small end")
    yield line(across.start, up.start, across.end, up.start, "rule")
    yield line(across.start, up.start, across.start, up.end, "rule")
    yield line(across.start, up.start, across.end, up.end, "aim")
    yield vertical_text(MARGIN + 8, (up.start + up.end) / 2, "share of good steps")


def _curve(index: int, curve: Sequence[Bin], across: Axis, up: Axis, largest: int) -> Iterator[str]:
    """A line from bin to bin, with dots whose area grows with the number of steps."""
    points = [(across(each.probability), up(each.good)) for each in curve]
    yield f'<path class="curve s{index}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'
    for each, (x, y) in zip(curve, points):
        radius = 3 + 5 * (each.count / largest) ** 0.5
        tooltip = f"{each.count:,} steps: predicted {each.probability:.3f}, good {each.good:.3f}"
        spot = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        yield f'<circle class="dot s{index}" {spot}><title>{escape_xml(tooltip)}</title></circle>'


def _counts(
    index: int, total: int, name: str, curve: Sequence[Bin], across: Axis, base: float, largest: int
) -> Iterator[str]:
    """The number of steps per bin; the bars of several predictors are drawn side by side."""
    for each in curve:
        room = across(each.high) - across(each.low)
        start, width = across(each.low) + 0.06 * room, 0.88 * room / total
        height = max(_COUNTS * each.count / largest, 1.0)
        tooltip = f"{name}: {each.count:,} steps from {number(each.low)} to {number(each.high)}"
        yield bar(start + index * width, base - height, 0.97 * width, height, f"s{index}", tooltip)


def _legend(
    probabilities: Mapping[str, Sequence[float]], labels: Sequence[bool], bins: int, left: float
) -> Iterator[str]:
    """The names of the lines, with calibration error and Brier score."""
    right = WIDTH - MARGIN
    columns = (right - 58, right)
    yield from (text(x, TOP + 8, words, "small end") for x, words in zip(columns, ("ECE", "Brier")))
    y = TOP + 34
    for index, (name, predicted) in enumerate(probabilities.items()):
        yield line(left, y - 4.5, left + 20, y - 4.5, f"curve s{index}")
        yield f'<circle class="dot s{index}" cx="{left + 10:.1f}" cy="{y - 4.5:.1f}" r="5"/>'
        yield text(left + 28, y, fit_text(name, columns[0] - 44 - left - 28, 1, FONT * BOLD)[0], "name")
        measured = calibration_error(predicted, labels, bins), brier(predicted, labels)
        yield from (text(x, y, f"{value:.3f}", "number end") for x, value in zip(columns, measured))
        y += 26
    yield line(left, y - 14, right, y - 14, "grid")
    good = sum(map(bool, labels)) / len(labels)
    notes = (
        f"{len(labels):,} steps, {good:.1%} good.",
        "Above the diagonal, steps are better than predicted; below it, worse.",
        "The area of a dot and the bars below show the number of steps per bin.",
    )
    for sentence in notes:
        for each in fit_text(sentence, right - left, 4, SMALL):
            yield text(left, y + 8, each, "small")
            y += 17
        y += 6
