"""The studio: web pages to look at runs, on this machine.

In: a folder of runs and limits. Out: an application (`make_studio_app`), or a server that runs until it is stopped
(`serve_studio`).

    /                       every run: state, stages, scores, alarms, cost; live
    /runs/NAME              one run: stages, curves, results; live
    /runs/NAME/trees        its search trees
    /compare?runs=A&runs=B  runs side by side
    /runs/NAME/pairs        preference pairs, and marks on them
    /playground             ask a policy, edit its steps, compare two
    /health /info /metrics  as every server

site.py has what all pages share; each file in pages/ is one page and says which addresses it has. Errors are pages for
browsers, and JSON, {"detail": "..."}, for everybody else.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Unpack

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from stepladder.serve.http.api import ServerAPI
from stepladder.serve.http.gate import Gate
from stepladder.serve.http.run_server import ListenOptions, run
from stepladder.serve.http.server_metrics import Metrics
from stepladder.serve.server_configs import StudioConfig
from stepladder.serve.studio.pages.comparison_page import add_comparison_page
from stepladder.serve.studio.pages.pairs_page import add_pairs_page
from stepladder.serve.studio.pages.playground_page import add_playground_page
from stepladder.serve.studio.pages.run_page import add_run_page
from stepladder.serve.studio.pages.runs_page import add_runs_page
from stepladder.serve.studio.pages.trees_page import add_trees_page
from stepladder.serve.studio.playground.loaded_policies import LoadedPolicies
from stepladder.serve.studio.run_library import RunLibrary
from stepladder.serve.studio.site import Site
from stepladder.serve.studio.watch.curve_library import CurveLibrary
from stepladder.serve.studio.watch.run_watch import RunWatch
from stepladder.serve.studio.watch.tree_library import TreeLibrary


class Problem(BaseModel):
    """An error, in FastAPI's format."""

    detail: str


def make_studio_app(runs: RunLibrary, config: StudioConfig, *, local: bool = True) -> Gate:
    """The server as an ASGI application. `local`: only this machine can connect."""
    # Requests to a studio that everybody can reach may not make it read paths or call servers.
    policies = LoadedPolicies(runs, config, trusted=local or config.token is not None)
    watch = RunWatch(runs, config.refresh_seconds)
    metrics = Metrics("page_seconds", "Seconds to answer a request of the page of all runs.", (0.01, 0.1, 0.5, 1, 5))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        first_look = asyncio.create_task(run_in_threadpool(watch.states))  # before the first page is opened
        yield
        first_look.cancel()
        await policies.close()

    api = ServerAPI(
        "Stepladder studio",
        config,
        metrics,
        {"runs": str(runs.path), "limits": config.model_dump(exclude={"token"})},
        lifespan=lifespan,
        error_model=Problem,
        error_fields=lambda error: {"detail": error.detail},
    )
    api.main_path = "/"
    site = Site(api, "Stepladder studio")
    add_runs_page(site, watch, config.refresh_seconds)
    add_pairs_page(site, runs)
    add_playground_page(site, policies)
    add_trees_page(site, TreeLibrary(watch), config.refresh_seconds)
    add_comparison_page(site, watch)
    add_run_page(site, watch, CurveLibrary(), config.refresh_seconds)  # last: the name of a run may contain slashes
    gate = Gate(api, config, metrics, local=local)
    site.is_draining = lambda: gate.draining
    return gate


def serve_studio(runs: RunLibrary, config: StudioConfig, **options: Unpack[ListenOptions]) -> None:
    """Serve until SIGTERM or Ctrl-C, on port 8002 if the options name no other."""
    options.setdefault("port", 8002)
    run(lambda local: make_studio_app(runs, config, local=local), config, may="read these runs", **options)
