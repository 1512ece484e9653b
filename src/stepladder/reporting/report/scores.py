"""Results: evaluations of policies with paired differences, and evaluations of process reward models.

In: a `RunData`. Out: `Scores`, and one `PRMQuality` per PRM evaluation. Its two plots are embedded as images, so that
their style sheets do not leak into the page and still follow light and dark mode.
"""

from base64 import b64encode
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from stepladder.evaluation.statistics import Comparison, Interval
from stepladder.pipeline.resources import ORACLE
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stage import EXAMINATION
from stepladder.reporting.charts.figures import Row, forest_svg
from stepladder.reporting.number_text import interval
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.run_tables import differences, evaluations, policy_label, stage_summary

_PLOTS = {
    "chains.svg": "Score distributions of gold and corrupted chains",
    "calibration.svg": "Reliability diagram: predicted probability vs. share of good steps",
}
#: Lines of the stage summary that are shown as tables here.
_TABLES = ("by kind", "faults detected at 0")


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
    stages = evaluations(run.report)
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


@dataclass(frozen=True, slots=True)
class PRMQuality:
    """The result of one PRM evaluation."""

    stage: StageRecord
    headline: str
    lines: Mapping[str, str]
    #: Images embedded in the page, by their description.
    plots: Mapping[str, str]


def prm_quality_of(run: RunData) -> list[PRMQuality]:
    """Every PRM evaluation of a run."""
    found = []
    for stage in run.report.stages:
        if EXAMINATION in stage.outputs:
            headline, lines = stage_summary(stage) or ("", {})
            shown = {name: line for name, line in lines.items() if line and name not in _TABLES}
            paths = {alt: run.folder / stage.name / EXAMINATION / name for name, alt in _PLOTS.items()}
            plots = {
                alt: f"data:image/svg+xml;base64,{b64encode(path.read_bytes()).decode()}"
                for alt, path in paths.items()
                if path.is_file()
            }
            found.append(PRMQuality(stage, headline, shown, plots))
    return found
