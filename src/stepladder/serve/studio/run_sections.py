"""The parts of a run's page that the report has, too: scores, reward models, transcripts, alarms, cost, reproduction.

In: a run folder. Out: each part as HTML, made again when a stage has ended or an alarm was raised. A part that cannot
be made says why, and does not keep the others from being shown.
"""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from stepladder.reporting.report.before_after import transcripts_of
from stepladder.reporting.report.cost import costs_of
from stepladder.reporting.report.reproduction import reproduction_of
from stepladder.reporting.report.run_data import RunData, load_run
from stepladder.reporting.report.scores import prm_quality_of, scores_of
from stepladder.reporting.report.training_curves import alarms_of
from stepladder.serve.studio.site import Site
from stepladder.serve.studio.watch.run_state import DAMAGE
from stepladder.train.grpo.monitors import ALARMS

#: `NAME.html` is a template of the report; the function returns its content. Without content the part is left out.
SECTIONS: dict[str, tuple[str, Callable[[RunData], Any]]] = {
    "results": ("Results", scores_of),
    "prm": ("Process reward model", prm_quality_of),
    "transcripts": ("Before and after", transcripts_of),
    "alarms": ("Alarms", alarms_of),
    "cost": ("Cost", costs_of),
    "reproduction": ("Reproduction", reproduction_of),
}
#: Runs whose parts are kept.
_KEPT = 8


class RunSections:
    """The parts of the pages that were looked at last."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = Lock()
        self._kept: OrderedDict[Path, tuple[object, dict[str, str]]] = OrderedDict()

    def of(self, folder: Path) -> dict[str, str]:
        """The parts as HTML, by name."""
        version = tuple(_stat(path) for path in _sources(folder))
        with self._lock:
            if (kept := self._kept.pop(folder, None)) is None or kept[0] != version:
                kept = version, self._make(folder)
            self._kept[folder] = kept
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return kept[1]

    def _make(self, folder: Path) -> dict[str, str]:
        try:
            run = load_run(folder)
        except DAMAGE as error:
            return {name: self._section(name, problem=str(error)) for name in SECTIONS}
        found = {}
        for name, (_, build) in SECTIONS.items():
            try:
                content = build(run)
                found[name] = self._section(name, content=content, run=run) if content else self._section(name)
            except DAMAGE as error:
                found[name] = self._section(name, problem=f"{type(error).__name__}: {error}")
        return found

    def _section(self, name: str, *, content: Any = None, run: RunData | None = None, problem: str = "") -> str:
        title, _ = SECTIONS[name]
        return self._site.fragment(
            "run_section.html", name=name, title=title, content=content, run=run, problem=problem, part=f"{name}.html"
        )


def _sources(folder: Path) -> list[Path]:
    """The files whose change makes the parts old."""
    return sorted([folder / "run.json", *folder.glob("*/stage.json"), *folder.glob(f"*/{ALARMS}")])


def _stat(path: Path) -> tuple[str, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0
    return str(path), found.st_size, found.st_mtime_ns
