"""Renders the sections of a report into one HTML page.

In: a run folder. Out: the page, with style sheet and script inlined.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.io.files import atomic_file
from stepladder.reporting.html_page import render_page
from stepladder.reporting.report.alarms import alarms_of
from stepladder.reporting.report.before_after import transcripts_of
from stepladder.reporting.report.cost import costs_of
from stepladder.reporting.report.prm_quality import prm_quality_of
from stepladder.reporting.report.reproduction import data_text, reproduction_of
from stepladder.reporting.report.run_data import RunData, load_run
from stepladder.reporting.report.scores import scores_of
from stepladder.reporting.report.training_curves import curves_of
from stepladder.reporting.report.tree_view import trees_of

FILE = "report.html"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: `NAME.html` is its template, `build` returns its content. Empty content omits the section."""

    name: str
    title: str
    build: Callable[[RunData], Any]


SECTIONS = (
    Section("results", "Results", scores_of),
    Section("curves", "Learning curves", curves_of),
    Section("prm", "Process reward model", prm_quality_of),
    Section("trees", "Search trees", trees_of),
    Section("transcripts", "Before and after", transcripts_of),
    Section("alarms", "Alarms", alarms_of),
    Section("cost", "Cost", costs_of),
    Section("reproduction", "Reproduction", reproduction_of),
)


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run, by default to `report.html` in its folder. Returns the path."""
    page = render(load_run(run_folder))
    out = run_folder / FILE if out is None else out
    with atomic_file(out, what="report") as file:
        file.write(page)
    return out


def render(run: RunData) -> str:
    """The page of a run."""
    contents = [(section, section.build(run)) for section in SECTIONS]
    return render_page(
        "stepladder.reporting.report",
        "report.html",
        {"whole": _whole, "decimal": _decimal},
        script="report.js",
        run=run,
        recipe=run.report.recipe,
        data=data_text(run),
        sections=[(section, content) for section, content in contents if content],
    )


def _whole(count: int | None) -> str:
    """A count with thousands separators; a dash if unknown."""
    return "–" if count is None else f"{count:,}"


def _decimal(value: float | None) -> str:
    """A number with two decimals; a dash if unknown."""
    return "–" if value is None else f"{value:.2f}".replace("-", "−")
