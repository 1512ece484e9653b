"""Results: one row per evaluation, paired differences between evaluations, F1 by searches needed.

In: a `RunData`. Out: `Scores`, formatted for the page.
"""

from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from stepladder.evaluation.statistics import Comparison, Interval, interval_text
from stepladder.pipeline.resources import BASE, ORACLE
from stepladder.pipeline.run_folder import StageRecord
from stepladder.reporting.charts.interval_plots import StageScore, stages_svg
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.run_tables import differences


@dataclass(frozen=True, slots=True)
class Row:
    """One evaluation."""

    stage: str
    policy: str
    questions: int
    em: str
    f1: str
    valid: str
    searches: str
    #: Failed episodes, counted as wrong.
    failed: int
    #: F1 by searches needed, in the order of `Scores.hops`; None if there are no such questions.
    by_hops: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """The paired difference between two evaluations: EM and F1 with p-values."""

    stage: str
    against: str
    questions: int
    em: str
    em_p: str
    f1: str
    f1_p: str


@dataclass(frozen=True, slots=True)
class Scores:
    """All evaluations of a run."""

    rows: tuple[Row, ...]
    chart: Markup
    #: Whether the oracle was evaluated as well.
    oracle: bool
    changes: tuple[Change, ...]
    #: The numbers of searches that questions need.
    hops: tuple[str, ...]
    #: Number of questions for each of them, in the first evaluation.
    hop_questions: tuple[int, ...]


def scores_of(run: RunData) -> Scores | None:
    """The results of a run; None without an evaluation."""
    stages = run.evaluations
    if not stages:
        return None
    hops = sorted({each for stage in stages for each in stage.summary["by_hops"]} - {"0"}, key=int)
    base = Path(run.report.recipe.shared.policy).name
    points = [
        StageScore(stage.name, Interval(**stage.summary["f1"]), stage.inputs["policy"] == ORACLE) for stage in stages
    ]
    groups = stages[0].summary["by_hops"]
    return Scores(
        tuple(_row(stage, base, hops) for stage in stages),
        Markup(stages_svg(points)),
        any(each.oracle for each in points),
        tuple(_changes(run)),
        tuple(hops),
        tuple(groups.get(each, {}).get("questions", 0) for each in hops),
    )


def _row(stage: StageRecord, base: str, hops: list[str]) -> Row:
    numbers, policy = stage.summary, stage.inputs["policy"]
    return Row(
        stage.name,
        {BASE: base, ORACLE: "oracle"}.get(policy, policy),
        numbers["questions"],
        interval_text(Interval(**numbers["em"]), 2),
        interval_text(Interval(**numbers["f1"]), 2),
        f"{numbers['validity']:.2f}",
        f"{numbers['searches']:.2f}",
        numbers["failed"],
        tuple(numbers["by_hops"][each]["f1"] if each in numbers["by_hops"] else None for each in hops),
    )


def _changes(run: RunData) -> list[Change]:
    """The differences in EM and F1, side by side."""
    found: dict[tuple[str, str], dict[str, Comparison]] = {}
    for each in differences(run.report):
        found.setdefault((each.stage, each.against), {})[each.metric] = each.comparison
    return [
        Change(stage, against, by["f1"].questions, _signed(by["em"]), _p(by["em"]), _signed(by["f1"]), _p(by["f1"]))
        for (stage, against), by in found.items()
    ]


def _signed(comparison: Comparison) -> str:
    change = comparison.difference
    return f"{change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}]".replace("-", "−")


def _p(comparison: Comparison) -> str:
    return "< 0.001" if comparison.p_value < 0.001 else f"{comparison.p_value:.3f}"
