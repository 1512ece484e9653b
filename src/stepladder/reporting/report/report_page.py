"""Puts the sections of a report into one HTML page.

In: the folder of a run. Out: the page, with its style sheet and its script inside. Texts of transcripts and passages
are data: whatever they hold is shown as text.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stepladder import __version__
from stepladder.core.io.files import atomic_file
from stepladder.reporting.report.alarms import alarms_of
from stepladder.reporting.report.before_after import transcripts_of
from stepladder.reporting.report.cost import costs_of
from stepladder.reporting.report.prm_quality import examinations_of
from stepladder.reporting.report.reproduction import data_text, origin_of
from stepladder.reporting.report.run_data import Run, gather
from stepladder.reporting.report.scores import scores_of
from stepladder.reporting.report.training_curves import curves_of
from stepladder.reporting.report.tree_view import trees_of

FILE = "report.html"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: `NAME.html` is its template, `make` gives what goes into it. Nothing made, no section."""

    name: str
    title: str
    make: Callable[[Run], Any]


SECTIONS = (
    Section("results", "Results", scores_of),
    Section("learning", "Learning curves", curves_of),
    Section("reward", "Reward model", examinations_of),
    Section("trees", "Search trees", trees_of),
    Section("transcripts", "Before and after", transcripts_of),
    Section("alarms", "Alarms", alarms_of),
    Section("cost", "Cost", costs_of),
    Section("origin", "How it was made", origin_of),
)


def write_report(run_folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run, to `report.html` in its folder unless said otherwise. Returns where it is."""
    page = render(gather(run_folder))
    out = run_folder / FILE if out is None else out
    with atomic_file(out, what="report") as file:
        file.write(page)
    return out


def render(run: Run) -> str:
    """The page of a run."""
    environment = Environment(
        loader=PackageLoader("stepladder.reporting.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(whole=_whole, decimal=_decimal)
    made = [(section, section.make(run)) for section in SECTIONS]
    return environment.get_template("page.html").render(
        run=run,
        recipe=run.report.recipe,
        data=data_text(run),
        sections=[(section, content) for section, content in made if content],
        version=__version__,
        # Ours, and not to be escaped: style sheets and scripts are no HTML.
        style=Markup(_source(environment, "page.css")),
        script=Markup(_source(environment, "page.js")),
    )


def _source(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _whole(count: int | None) -> str:
    """A count with separators; a dash where it is not known."""
    return "–" if count is None else f"{count:,}"


def _decimal(value: float | None) -> str:
    """A number with two digits; a dash where it is not known."""
    return "–" if value is None else f"{value:.2f}".replace("-", "−")
