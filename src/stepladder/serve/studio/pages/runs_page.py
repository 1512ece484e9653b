"""The page of all runs: `/`.

In: the runs of a folder. Out: a table of them that is updated while they train.
"""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from stepladder.serve.server_configs import StudioConfig
from stepladder.serve.studio.run_library import RunLibrary
from stepladder.serve.studio.site import Site


def add_runs_page(site: Site, runs: RunLibrary, config: StudioConfig) -> None:  # noqa: ARG001
    """Add the page to a site."""
    router = APIRouter()

    @router.get("/")
    def runs_page() -> HTMLResponse:
        return site.render("runs.html", here="/", folder=str(runs.path), names=runs.names())

    site.add_page(router, "/", "Runs")
