"""The quality of the process reward model: how well it separates good steps from faulty ones.

In: a `RunData`. Out: one `PRMQuality` per PRM evaluation, with its two plots. These are embedded as images, so that
their style sheets do not leak into the page and still follow light and dark mode.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepladder.evaluation.statistics import Interval, interval_text
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stage import EXAMINATION
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.stage_summaries import stage_summary

_PLOTS = {
    "chains.svg": "Score distributions of gold and corrupted chains",
    "calibration.svg": "Reliability diagram: predicted probability vs. share of good steps",
}
#: Lines of the stage summary that are shown as tables here.
_TABLES = ("by kind", "faults detected at 0")


@dataclass(frozen=True, slots=True)
class StepKind:
    """AUC on the steps of one kind."""

    name: str
    auc: str
    steps: int
    faulty: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Share of the steps with a fault that score below 0."""

    fault: str
    share: str
    steps: int


@dataclass(frozen=True, slots=True)
class Plot:
    """An image embedded in the page."""

    alt: str
    source: str


@dataclass(frozen=True, slots=True)
class PRMQuality:
    """The result of one PRM evaluation."""

    stage: str
    headline: str
    lines: Mapping[str, str]
    kinds: tuple[StepKind, ...]
    faults: tuple[Fault, ...]
    plots: tuple[Plot, ...]


def prm_quality_of(run: RunData) -> tuple[PRMQuality, ...]:
    """Every PRM evaluation of a run."""
    return tuple(_quality(run, stage) for stage in run.report.stages if EXAMINATION in stage.outputs)


def _quality(run: RunData, stage: StageRecord) -> PRMQuality:
    numbers = stage.summary
    headline, lines = stage_summary(stage) or ("", {})
    folder = run.folder / stage.name / EXAMINATION
    return PRMQuality(
        stage.name,
        headline,
        {name: line for name, line in lines.items() if line and name not in _TABLES},
        tuple(
            StepKind(name.replace("_", "-"), _auc(each["auc"]), each["steps"], each["faulty"])
            for name, each in numbers.get("by_kind", {}).items()
        ),
        tuple(
            Fault(fault, f"{each['below_0']:.0%}", each["steps"]) for fault, each in numbers.get("faults", {}).items()
        ),
        tuple(
            Plot(alt, "data:image/svg+xml;base64," + b64encode((folder / name).read_bytes()).decode())
            for name, alt in _PLOTS.items()
            if (folder / name).is_file()
        ),
    )


def _auc(found: dict[str, Any] | None) -> str:
    """An AUC with its interval; undefined if all steps of a kind are good, or all are faulty."""
    return interval_text(Interval(**found), 2) if found else "–"
