"""A comparison as a self-contained HTML page.

In: a `RunComparison`. Out: the page, in the layout of run reports.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from stepladder.core.io.files import atomic_file
from stepladder.evaluation.statistics import Interval, signed_text
from stepladder.reporting.charts.figures import Row, forest_svg, scatter_svg
from stepladder.reporting.compare.compare_table import metric_name, notes
from stepladder.reporting.compare.comparison import ALPHA, Difference, RunComparison
from stepladder.reporting.html_page import render_page
from stepladder.reporting.number_text import interval, typeset


def write_comparison(comparison: RunComparison, pairwise: Sequence[Difference], out: Path) -> None:
    """Write the page. `pairwise`: the differences between all pairs of arms."""
    page = render(comparison, pairwise)
    with atomic_file(out, what="comparison") as file:
        file.write(page)


def render(comparison: RunComparison, pairwise: Sequence[Difference]) -> str:
    """The page of a comparison."""
    content = content_of(comparison, pairwise)
    return render_page("stepladder.reporting.compare", "compare.html", styles=("compare.css",), **content)


def content_of(comparison: RunComparison, pairwise: Sequence[Difference]) -> dict[str, Any]:
    """What compare.html shows."""
    return {
        "comparison": comparison,
        "lead": metric_name(comparison.metric),
        "extra": comparison.metric if comparison.metric not in ("f1", "em") else None,
        "forest": Markup(_scores(comparison)),
        "forest_of_differences": Markup(_changes(comparison)) if comparison.differences else None,
        "scatter": _scatter(comparison),
        "uncounted": [arm.label for arm in comparison.arms if arm.tokens is None],
        "matrix": _matrix(comparison, pairwise),
        "tests": len(pairwise),
        "notes": list(notes(comparison)),
        "repeated": any(len(arm.seeds) > 1 for arm in comparison.arms),
        "alpha": ALPHA,
    }


def _scores(comparison: RunComparison) -> str:
    metric, rows = comparison.metric, []
    for arm in comparison.arms:
        score = arm.scores[metric]
        seeds = [value for seed in arm.seeds if (value := seed.means[metric]) is not None] if len(arm.seeds) > 1 else ()
        rows.append(Row(arm.label, score, interval(score), tuple(seeds), highlighted=arm.label != comparison.reference))
    reference = next(arm for arm in comparison.arms if arm.label == comparison.reference)
    mark = reference.scores[metric].mean if len(rows) > 1 else None
    return forest_svg(f"{metric_name(metric)} of every arm", rows, mark)


def _changes(comparison: RunComparison) -> str:
    rows = [
        Row(arm.label, each.difference, typeset(signed_text(each.difference)), highlighted=each.significant)
        for arm in comparison.arms
        if (each := comparison.differences.get(arm.label)) is not None
    ]
    return forest_svg(f"delta {metric_name(comparison.metric)} vs. {comparison.reference}", rows, 0.0)


def _scatter(comparison: RunComparison) -> Markup | None:
    dots = {arm.label: (arm.tokens, arm.scores["f1"]) for arm in comparison.arms if arm.tokens is not None}
    if not dots:
        return None
    return Markup(scatter_svg("F1 vs. tokens per question", dots, "tokens read and written per question", "F1"))


def _matrix(comparison: RunComparison, pairwise: Sequence[Difference]) -> list[list[Difference | None]]:
    """The difference between the arm of each row and the arm of each column; None on the diagonal."""
    found = {(each.arm, each.against): each for each in pairwise}
    for each in pairwise:
        change = each.difference
        swapped = Interval(-change.mean, -change.high, -change.low)
        found[each.against, each.arm] = replace(each, arm=each.against, against=each.arm, difference=swapped)
    labels = [arm.label for arm in comparison.arms]
    return [[found.get((arm, against)) for against in labels] for arm in labels]
