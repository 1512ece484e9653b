"""The page of one run: `/runs/NAME`.

In: its state, curves and report. Out: a page that `/runs/NAME/events` keeps current: stages, curves that grow, and the
parts of the report, which are sent when they have been made.
"""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from stepladder.pipeline.run_folder import RunFolder
from stepladder.reporting.report.training_curves import CURVES
from stepladder.serve.studio.live_page import News, live_events
from stepladder.serve.studio.run_sections import SECTIONS, RunSections
from stepladder.serve.studio.site import Site
from stepladder.serve.studio.watch.curve_file import CurveFile
from stepladder.serve.studio.watch.run_watch import RunWatch

#: Files of curves that are kept in memory.
_KEPT = 64


class Curves:
    """The curves of the stages that were looked at last. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: OrderedDict[Path, tuple[CurveFile, int]] = OrderedDict()

    def news(self, folder: Path, seen: dict[str, int]) -> Iterator[News]:
        """The curves of a run that have changed. `seen`: what the page has, by stage, which is updated."""
        for stage in RunFolder(folder).recipe().stages:
            path = folder / stage.name / CURVES
            if not path.is_file():
                continue
            with self._lock:
                file, version = self._files.pop(path, None) or (CurveFile(path), 0)
                version += file.update()
                self._files[path] = file, version
                while len(self._files) > _KEPT:
                    self._files.popitem(last=False)
                if seen.get(stage.name) == version:
                    continue
                seen[stage.name] = version
                data = {"stage": stage.name, "kind": stage.kind, **file.plain(stage.settings)}
            yield "curves", data


def add_run_page(site: Site, watch: RunWatch, seconds: float) -> None:
    """Add the page to a site. It looks at the run every so many seconds."""
    router = APIRouter()
    sections, curves = RunSections(site), Curves()

    @router.get("/runs/{name:path}/events")
    def run_events(request: Request, name: str) -> Response:
        watch.state(name)  # an unknown name is an error, not an empty stream
        seen_state, seen_curves, seen_sections = 0, dict[str, int](), dict[str, str]()

        def look() -> Iterator[News]:
            nonlocal seen_state
            state, version = watch.state(name)
            if version != seen_state:
                seen_state = version
                yield "part", {"id": "state", "html": site.part("run_state.html", "run_state", state)}
            if not state.is_readable:
                return
            folder = watch.runs.folder(name)
            yield from curves.news(folder, seen_curves)
            for section, html in sections.of(folder).items():
                if seen_sections.get(section) != html:
                    seen_sections[section] = html
                    yield "part", {"id": section, "html": html}

        return live_events(request, site, look, seconds)

    @router.get("/runs/{name:path}")
    def run_page(name: str) -> HTMLResponse:
        state, _ = watch.state(name)
        return site.render("run.html", here="/", run=state, sections=SECTIONS)

    site.add_page(router)
