"""The page of all runs: `/`.

In: the states of all runs. Out: a table of them. `/events` sends the rows that change.
"""

from collections.abc import Iterator

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from stepladder.serve.studio.live_page import News, live_events
from stepladder.serve.studio.site import Site
from stepladder.serve.studio.watch.run_watch import RunWatch


def add_runs_page(site: Site, watch: RunWatch, seconds: float) -> None:
    """Add the page to a site. It looks at the runs every so many seconds."""
    router = APIRouter()

    @router.get("/")
    def runs_page() -> HTMLResponse:
        states = [state for state, _ in watch.states()]
        return site.render("runs.html", here="/", library=watch.runs, runs=states)

    @router.get("/events")
    def runs_events(request: Request) -> Response:
        seen: dict[str, int] = {}

        def look() -> Iterator[News]:
            """The rows that have changed; all of them, if a run is new or gone."""
            states = watch.states()
            now = {state.name: version for state, version in states}
            if list(now) != list(seen):
                html = site.part("run_parts.html", "runs_table", [state for state, _ in states])
                yield "part", {"id": "runs", "html": html}
            else:
                for state in (state for state, version in states if seen[state.name] != version):
                    html = site.part("run_parts.html", "run_row", state)
                    yield "part", {"id": f"run:{state.name}", "html": html}
            seen.clear()
            seen.update(now)

        return live_events(request, site, look, seconds)

    site.add_page(router, "/", "Runs")
