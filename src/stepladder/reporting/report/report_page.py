"""Renders the sections of a report into one HTML page.

In: a run folder. Out: the page, with style sheet and script inlined.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepladder.core.io.files import atomic_file
from stepladder.reporting.charts.tree_diagram import KIND_LABELS
from stepladder.reporting.html_page import render_page
from stepladder.reporting.report.before_after import transcripts_of
from stepladder.reporting.report.cost import costs_of, duration
from stepladder.reporting.report.reproduction import data_text, reproduction_of
from stepladder.reporting.report.run_data import RunData, load_run
from stepladder.reporting.report.scores import prm_quality_of, scores_of
from stepladder.reporting.report.training_curves import alarms_of, curves_of
from stepladder.reporting.report.tree_view import trees_of

FILE = "report.html"


#: The parts of the page: `NAME.html` is a template, the function returns its content. Empty content omits the part.
SECTIONS: dict[str, tuple[str, Callable[[RunData], Any]]] = {
    "results": ("Results", scores_of),
    "curves": ("Learning curves", curves_of),
    "prm": ("Process reward model", prm_quality_of),
    "trees": ("Search trees", trees_of),
    "transcripts": ("Before and after", transcripts_of),
    "alarms": ("Alarms", alarms_of),
    "cost": ("Cost", costs_of),
    "reproduction": ("Reproduction", reproduction_of),
}


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder. Returns the path."""
    page = render(load_run(run_folder))
    out = run_folder / FILE if out is None else out
    with atomic_file(out, what="report") as file:
        file.write(page)
    return out


def render(run: RunData) -> str:
    """The page of a run."""
    contents = [(name, title, build(run)) for name, (title, build) in SECTIONS.items()]
    return render_page(
        "stepladder.reporting.report",
        "report.html",
        {"duration": duration, "kind": KIND_LABELS.__getitem__},
        scripts=("tree_view.js", "report.js"),
        run=run,
        recipe=run.report.recipe,
        data=data_text(run),
        sections=[section for section in contents if section[-1]],
    )
