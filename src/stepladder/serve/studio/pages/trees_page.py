"""The page of all search trees of a run: `/runs/NAME/trees`.

In: the index of the trees of a stage. Out: a page with a list and a viewer.

    /runs/NAME/trees?stage=explore&show=disputed&q=words#tree=QUESTION&node=5    the page
    /runs/NAME/trees/list      a page of the list: filter `show`, words `q`, `page`, or the one with the tree `around`
    /runs/NAME/trees/tree      one tree, by `stage` and `id`
    /runs/NAME/trees/events    how many trees there are and how many each filter lets through, while that changes
"""

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response

from stepladder.core.errors import StepladderError
from stepladder.reporting.report.tree_disputes import MARGIN
from stepladder.reporting.report.tree_view import tree_view
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.live_page import News, live_events
from stepladder.serve.studio.site import Site
from stepladder.serve.studio.watch.tree_index import TreeFilter
from stepladder.serve.studio.watch.tree_library import TreeLibrary, TreesNow

#: Trees on a page of the list, steps of a tree that are shown, characters of a search.
_PAGE, _STEPS, _WORDS = 40, 400, 200
#: Seconds that a request spends on the index before it answers with what is known; and every look of an open page.
_FIRST, _MORE = 0.25, 0.5
#: The filters, as they are named on the page.
FILTERS = {
    TreeFilter.ALL: "all",
    TreeFilter.SOLVED: "solved",
    TreeFilter.MIXED: "right and wrong",
    TreeFilter.UNSOLVED: "not solved",
    TreeFilter.DISPUTED: "disputed",
    TreeFilter.PRM_AGAINST_GOLD: "PRM against gold",
}


def add_trees_page(site: Site, trees: TreeLibrary, seconds: float) -> None:
    """Add the page to a site. It looks at the trees every so many seconds."""
    router = APIRouter()

    @router.get("/runs/{name:path}/trees")
    def trees_page(name: str, stage: str = "", show: str = "all") -> HTMLResponse:
        state, stages = trees.stages(name)
        shown = _filter(show)
        chosen = stage if stage in stages else stages[-1] if stages else ""
        return site.render(
            "run_trees.html",
            here="/",
            run=state,
            stages=stages,
            stage=chosen,
            filters=FILTERS,
            show=shown.value,
            margin=MARGIN,
        )

    @router.get("/runs/{name:path}/trees/list")
    def trees_list(
        name: str, stage: str, show: str = "all", q: str = "", page: int = 1, around: str = ""
    ) -> dict[str, Any]:
        with trees.trees(name, stage, _FIRST) as now:
            found = now.index.find(_filter(show), q[:_WORDS])
            if around:
                page = next((number for number, each in enumerate(found) if each.id == around), 0) // _PAGE + 1
            pages = max((len(found) + _PAGE - 1) // _PAGE, 1)
            page = min(max(page, 1), pages)
            shown = found[(page - 1) * _PAGE : page * _PAGE]
            html = site.part("tree_list.html", "tree_list", shown, bool(now.scored_by))
            return {
                "html": html,
                "ids": [each.id for each in shown],
                "page": page,
                "pages": pages,
                "found": len(found),
                **_numbers(now),
            }

    @router.get("/runs/{name:path}/trees/tree")
    def one_tree(name: str, stage: str, id: str) -> dict[str, Any]:
        with trees.trees(name, stage, _FIRST) as now:
            try:
                tree, scores = now.index.tree(id)
            except KeyError:
                hint = (
                    ""
                    if now.index.is_complete
                    else " among the trees that have been read so far: try again in a moment"
                )
                raise HTTPError(404, f"there is no tree of the question {id[:100]!r}{hint}") from None
            except (StepladderError, OSError) as error:
                raise HTTPError(409, str(error)) from error
        return {"html": site.part("tree.html", "tree", tree_view(tree, scores, _STEPS)), "id": id}

    @router.get("/runs/{name:path}/trees/events")
    def trees_events(request: Request, name: str, stage: str = "") -> Response:
        trees.stages(name)
        seen: dict[str, Any] = {}

        def look() -> Iterator[News]:
            nonlocal seen
            if not stage:  # the page of a run without trees
                if trees.stages(name)[1]:
                    yield "begun", True
                return
            with trees.trees(name, stage, _MORE) as now:
                numbers = _numbers(now)
            if numbers != seen:
                seen = numbers
                yield "trees", numbers

        return live_events(request, site, look, seconds)

    site.add_page(router)


def _filter(name: str) -> TreeFilter:
    try:
        return TreeFilter(name)
    except ValueError:
        raise HTTPError(422, f"unknown filter {name[:50]!r}: use {', '.join(TreeFilter)}") from None


def _numbers(now: TreesNow) -> dict[str, Any]:
    """What the page says about all trees of the stage."""
    index = now.index
    return {
        "version": index.version,
        "total": len(index.entries),
        "judged": index.judged,
        "reading": not index.is_complete and not now.problem,
        "growing": now.growing,
        "scored_by": now.scored_by,
        "problem": now.problem,
        "counts": {name.value: count for name, count in index.counts().items()},
    }
