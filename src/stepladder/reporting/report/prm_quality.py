"""The quality of the process reward model: how well it separates good steps from faulty ones.

In: a `RunData`. Out: one `PRMQuality` per PRM evaluation, with its two plots. These are embedded as images, so that
their style sheets do not leak into the page and still follow light and dark mode.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass

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
