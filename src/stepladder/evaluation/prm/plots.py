"""Two charts of a reward model: score distributions, and a reliability diagram.

In: scores or probabilities of steps. Out: self-contained SVG files.
"""

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from stepladder.core.unicode import readable
from stepladder.evaluation import svg_figure as svg
from stepladder.evaluation.prm.ranking import brier, calibration_error, reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Height of a row of the distributions, and the share of it that the highest bar takes.
_ROW, _BAR = 64.0, 0.78
#: Maximum number of bars of a distribution.
_BARS = 60
#: Side of the square of a reliability diagram, and height of the histogram below it.
_SIDE, _COUNTS = 384.0, 64.0
#: Columns of numbers, in pixels from the right.
_COLUMNS = (-146.0, -86.0, -24.0)


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
    rows = {name: np.asarray(scores, dtype=np.float64) for name, scores in groups.items()}
    if not any(map(len, rows.values())):
        raise ValueError("nothing to draw: at least one group with at least one score is needed")
    everything = np.concatenate([*rows.values(), [0.0, 1e-6]])
    top, bottom = svg.TOP + 16, 86

    def paint(figure: "Figure") -> svg.Tooltips:
        from matplotlib.ticker import MaxNLocator

        # Bars start at multiples of their width, so that none contains scores from both sides of 0.
        edges = MaxNLocator(_BARS, steps=[1, 2, 5, 10]).tick_values(everything.min(), everything.max())
        width = float(edges[1] - edges[0])
        axes = svg.plot_area(figure, left=svg.MARGIN + 124, right=svg.MARGIN + 176, top=top, bottom=bottom)
        axes.grid(visible=True, axis="x")
        axes.set(xlabel=axis, ylim=(len(rows), 0), yticks=[])
        axes.axvline(0, **svg.DASHED)
        for x, heading in zip(_COLUMNS, (counted, "median", "≥ 0")):
            svg.write(figure, x, svg.TOP, heading, color=svg.QUIET)
        for base, (name, scores) in enumerate(rows.items(), start=1):
            axes.axhline(base, color=svg.RULE, linewidth=1)
            bins, counts = np.unique(scores // width, return_counts=True)
            heights, colors = -_BAR * counts / counts.max(initial=1), [svg.SERIES[int(each >= 0)] for each in bins]
            bars = axes.bar((bins + 0.05) * width, heights, 0.9 * width, base, align="edge", color=colors)
            for bar, each, count in zip(bars, bins, counts):
                low, high = svg.number(each * width), svg.number((each + 1) * width)
                yield bar, f"{name}: {count:,} of {len(scores):,} from {low} to {high}"
            numbers = [f"{len(scores):,}", "–", "–"]
            if len(scores):
                median = float(np.median(scores))
                axes.plot([median] * 2, [base, base - _BAR - 0.05], color=svg.INK)
                numbers[1:] = [f"{median:.2f}".replace("-", "−"), f"{(scores >= 0).mean():.1%}"]
            y = top + _ROW * base - 14
            svg.write(figure, svg.MARGIN, y, readable(name, 16), size=svg.FONT, weight="bold")
            for x, value in zip(_COLUMNS, numbers):
                svg.write(figure, x, y, value, size=svg.FONT)
        note = "Vertical line: median. Bars are scaled per row."
        svg.write(figure, svg.MARGIN, top + _ROW * len(rows) + 72, note, color=svg.QUIET)

    return svg.svg_file(title, subtitle, top + _ROW * len(rows) + bottom, paint)


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
    if not 1 <= len(probabilities) <= len(svg.SERIES):
        raise ValueError(f"{len(probabilities)} predictors given; 1 to {len(svg.SERIES)} can be drawn")
    curves = {name: reliability(predicted, labels, bins) for name, predicted in probabilities.items()}
    largest = max(each.count for curve in curves.values() for each in curve)
    left, right = svg.MARGIN + 52, svg.WIDTH - svg.MARGIN - 52 - _SIDE
    column = left + _SIDE + 36

    def paint(figure: "Figure") -> svg.Tooltips:
        square = svg.plot_area(figure, left, right, top=svg.TOP, bottom=_COUNTS + 88)
        square.set(xlim=(0, 1), ylim=(0, 1), xticklabels=[], ylabel="share of good steps")
        square.grid(visible=True, axis="x")
        square.plot([0, 1], [0, 1], **svg.DASHED)
        below = svg.plot_area(figure, left, right, top=svg.TOP + _SIDE + 28, bottom=60)
        below.set(xlim=(0, 1), ylim=(0, largest), yticks=[0, largest], ylabel="steps")
        below.set_xlabel("predicted probability that a step is good")
        for x, heading in zip(_COLUMNS[1:], ("ECE", "Brier")):
            svg.write(figure, x, svg.TOP + 8, heading, color=svg.QUIET)
        for index, (color, (name, curve)) in enumerate(zip(svg.SERIES, curves.items())):
            square.plot([each.probability for each in curve], [each.good for each in curve], color=color)
            for each in curve:
                size = 6 + 10 * (each.count / largest) ** 0.5
                (dot,) = square.plot(each.probability, each.good, "o", ms=size, color=color)
                yield dot, f"{each.count:,} steps: predicted {each.probability:.3f}, good {each.good:.3f}"
                width = 0.88 * (each.high - each.low) / len(curves)
                start = each.low + 0.06 * (each.high - each.low) + index * width
                (bar,) = below.bar(start, each.count, 0.97 * width, align="edge", color=color)
                yield bar, f"{name}: {each.count:,} steps from {svg.number(each.low)} to {svg.number(each.high)}"
            y, predicted = svg.TOP + 34 + 26 * index, probabilities[name]
            svg.write(figure, column, y, readable(name, 12), color=color, size=svg.FONT, weight="bold")
            for x, value in zip(_COLUMNS[1:], (calibration_error(predicted, labels, bins), brier(predicted, labels))):
                svg.write(figure, x, y, f"{value:.3f}", size=svg.FONT)
        notes = (
            f"{len(labels):,} steps, {sum(map(bool, labels)) / len(labels):.1%} good.",
            "Above the diagonal, steps are better than predicted; below it, worse.",
            "The area of a dot and the bars below show the number of steps per bin.",
        )
        text = "\n\n".join(fill(note, 34) for note in notes)
        svg.write(figure, column, svg.TOP + 34 + 26 * len(curves), text, color=svg.QUIET, va="top")

    return svg.svg_file(title, subtitle, svg.TOP + _SIDE + _COUNTS + 88, paint)
