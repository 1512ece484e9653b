"""A comparison as a self-contained HTML page.

In: a `RunComparison`. Out: the page, in the layout of run reports.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stepladder.core.io.files import atomic_file
from stepladder.evaluation.statistics import Interval, interval_text
from stepladder.reporting.charts.interval_plots import Dot, Row, forest_svg, scatter_svg
from stepladder.reporting.compare.compare_table import brief, decimal, metric_name, notes, p_text
from stepladder.reporting.compare.comparison import ALPHA, Arm, Difference, RunComparison
from stepladder.reporting.html_page import render_page

_UNKNOWN = "–"


def write_comparison(comparison: RunComparison, pairwise: Sequence[Difference], out: Path) -> None:
    """Write the page. `pairwise`: the differences between all pairs of arms."""
    page = render(comparison, pairwise)
    with atomic_file(out, what="comparison") as file:
        file.write(page)


def render(comparison: RunComparison, pairwise: Sequence[Difference]) -> str:
    """The page of a comparison."""
    return render_page(
        "stepladder.reporting.compare",
        "compare.html",
        {"decimal": lambda value: _typeset(decimal(value)), "brief": lambda count: _typeset(brief(count))},
        styles=("compare.css",),
        comparison=comparison,
        lead=metric_name(comparison.metric),
        extra=comparison.metric if comparison.metric not in ("f1", "em") else None,
        rows=[_row(arm, comparison) for arm in comparison.arms],
        forest=Markup(_scores(comparison)),
        forest_of_differences=Markup(_changes(comparison)) if comparison.differences else None,
        scatter=_scatter(comparison),
        uncounted=[arm.label for arm in comparison.arms if arm.tokens is None],
        matrix=_matrix(comparison, pairwise),
        tests=len(pairwise),
        notes=list(notes(comparison)),
        repeated=any(len(arm.seeds) > 1 for arm in comparison.arms),
        alpha=ALPHA,
    )


def _row(arm: Arm, comparison: RunComparison) -> dict[str, Any]:
    """An arm as a row of the table."""
    difference = comparison.differences.get(arm.label)
    return {
        "arm": arm,
        "scores": {name: _interval(score) for name, score in arm.scores.items()},
        "difference": None if difference is None else signed(difference.difference),
        "p": "" if difference is None else _p(difference.corrected),
        "significant": difference is not None and difference.significant,
    }


def _scores(comparison: RunComparison) -> str:
    metric = comparison.metric
    rows = [
        Row(
            arm.label,
            arm.scores[metric],
            _interval(arm.scores[metric]),
            tuple(value for seed in arm.seeds if (value := seed.means[metric]) is not None)
            if len(arm.seeds) > 1
            else (),
            highlighted=arm.label != comparison.reference,
        )
        for arm in comparison.arms
    ]
    reference = next(arm for arm in comparison.arms if arm.label == comparison.reference)
    return forest_svg(
        f"{metric_name(metric)} of every arm", rows, reference.scores[metric].mean if len(rows) > 1 else None
    )


def _changes(comparison: RunComparison) -> str:
    rows = [
        Row(arm.label, each.difference, signed(each.difference), highlighted=each.significant)
        for arm in comparison.arms
        if (each := comparison.differences.get(arm.label)) is not None
    ]
    return forest_svg(f"delta {metric_name(comparison.metric)} vs. {comparison.reference}", rows, 0.0)


def _scatter(comparison: RunComparison) -> Markup | None:
    dots = [Dot(arm.label, arm.tokens, arm.scores["f1"]) for arm in comparison.arms if arm.tokens is not None]
    if not dots:
        return None
    return Markup(scatter_svg("F1 vs. tokens per question", dots, "tokens read and written per question", "F1"))


def _matrix(comparison: RunComparison, pairwise: Sequence[Difference]) -> list[list[dict[str, Any] | None]]:
    """The difference between the arm of each row and the arm of each column; None on the diagonal."""
    found = {(each.arm, each.against): each for each in pairwise}

    def cell(arm: str, against: str) -> dict[str, Any] | None:
        if arm == against:
            return None
        swapped = (arm, against) not in found
        each = found[(against, arm) if swapped else (arm, against)]
        change = each.difference
        if swapped:
            change = Interval(-change.mean, -change.high, -change.low)
        return {
            "mean": _typeset(f"{change.mean:+.3f}" if abs(change.mean) < 100 else f"{change.mean:+,.0f}"),
            "tooltip": f"{arm} vs. {against}: {signed(change)}, p {_p(each.corrected)}",
            "sign": "" if not each.significant else "better" if change.mean > 0 else "worse",
        }

    labels = [arm.label for arm in comparison.arms]
    return [[cell(arm, against) for against in labels] for arm in labels]


def signed(change: Interval) -> str:
    """A difference with its interval."""
    digits = 0 if max(map(abs, (change.low, change.high))) >= 100 else 3
    return _typeset(f"{change.mean:+,.{digits}f} [{change.low:+,.{digits}f}, {change.high:+,.{digits}f}]")


def _interval(score: Interval) -> str:
    return interval_text(score, 0 if abs(score.mean) >= 100 else 2)


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else p_text(p)


def _typeset(words: str) -> str:
    """A number with a typographic minus; a dash if unknown."""
    return _UNKNOWN if words == "-" else words.replace("-", "−")
