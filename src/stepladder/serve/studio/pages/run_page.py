"""The page of one run: `/runs/NAME`.

In: its state, curves and report. Out: a page that `/runs/NAME/events` keeps current: stages, curves that grow, and the
parts of the report, which are sent when they have been made. `/runs/NAME/curves` has the curves as JSON.
"""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from stepladder.serve.studio.live_page import News, live_events
from stepladder.serve.studio.run_sections import SECTIONS, RunSections
from stepladder.serve.studio.site import Site
from stepladder.serve.studio.watch.curve_library import CurveLibrary
from stepladder.serve.studio.watch.run_watch import RunWatch


def add_run_page(site: Site, watch: RunWatch, curves: CurveLibrary, seconds: float) -> None:
    """Add the page to a site. It looks at the run every so many seconds."""
    router = APIRouter()
    sections = RunSections(site)

    @router.get("/runs/{name:path}/events")
    def run_events(request: Request, name: str) -> Response:
        watch.state(name)  # an unknown name is an error, not an empty stream
        seen_state, seen_curves, seen_sections = 0, dict[str, int](), dict[str, str]()

        def look() -> Iterator[News]:
            nonlocal seen_state
            state, version = watch.state(name)
            if version != seen_state:
                seen_state = version
                yield "part", {"id": "state", "html": site.part("run_state.html", "run_state", state, SECTIONS)}
            if not state.is_readable:
                return
            folder = watch.runs.folder(name)
            for changed in curves.changed(folder, seen_curves):
                yield "curves", changed
            for section, html in sections.of(folder).items():
                if seen_sections.get(section) != html:
                    seen_sections[section] = html
                    yield "part", {"id": section, "html": html}

        return live_events(request, site, look, seconds)

    @router.get("/runs/{name:path}/curves")
    def run_curves(name: str) -> list[dict[str, Any]]:
        watch.readable(name)
        return list(curves.changed(watch.runs.folder(name), {}))

    @router.get("/runs/{name:path}")
    def run_page(name: str) -> HTMLResponse:
        state, _ = watch.state(name)
        return site.render("run.html", here="/", run=state, sections=SECTIONS)

    site.add_page(router)
