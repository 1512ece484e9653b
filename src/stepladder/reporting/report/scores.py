"""Results: one row per evaluation, paired differences between evaluations, F1 by searches needed.

In: a `RunData`. Out: `Scores`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.evaluation.statistics import Comparison, Interval
from stepladder.pipeline.resources import ORACLE
from stepladder.pipeline.run_folder import StageRecord
from stepladder.reporting.charts.figures import Row, forest_svg
from stepladder.reporting.number_text import interval
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.run_tables import differences, policy_label


@dataclass(frozen=True, slots=True)
class Scores:
    """All evaluations of a run."""

    #: Each evaluation with the name of its policy.
    evaluations: list[tuple[StageRecord, str]]
    #: F1 by stage.
    chart: Markup
    #: Whether the oracle was evaluated as well.
    oracle: bool
    #: The numbers of searches that questions need.
    hops: list[str]
    #: Paired differences by metric, for each pair of evaluations.
    changes: Mapping[tuple[str, str], Mapping[str, Comparison]]


def scores_of(run: RunData) -> Scores | None:
    """The results of a run; None without an evaluation."""
    stages = run.evaluations
    if not stages:
        return None
    changes: dict[tuple[str, str], dict[str, Comparison]] = defaultdict(dict)
    for each in differences(run.report):
        changes[each.stage, each.against][each.metric] = each.comparison
    models = [stage.inputs["policy"] != ORACLE for stage in stages]
    rows = [
        Row(stage.name, Interval(**stage.summary["f1"]), interval(stage.summary["f1"]), highlighted=model)
        for stage, model in zip(stages, models, strict=True)
    ]
    return Scores(
        [(stage, policy_label(stage, run.report)) for stage in stages],
        Markup(forest_svg("F1 by stage", rows, width=480, limits=(0, 1))),
        not all(models),
        sorted({hops for stage in stages for hops in stage.summary["by_hops"]} - {"0"}, key=int),
        changes,
    )
