"""The page of a run's preference pairs: `/runs/NAME/pairs`.

In: the runs of the studio. Out: the page, and its data:

    GET  /runs/NAME/pairs         the page; ?stage=STAGE for another than the newest
    GET  /pairs/list.json         rows that match a filter, what can be filtered by, marks and counts
    GET  /pairs/one.json          one pair with its state
    POST /pairs/mark              mark pairs as wrong, with a note
    POST /pairs/unmark            remove marks

The run's own files are not changed: marks are a file beside the pairs (preferences/marks.py).
"""

from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from stepladder.core.errors import StepladderError
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS
from stepladder.preferences.marks import MAX_NOTE, mark, read_marks, unmark
from stepladder.serve.http.api import RequestBody
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.pairs.pair_detail import mark_data, pair_detail
from stepladder.serve.studio.pairs.pair_index import PairFilter, PairIndex, PairIndexes
from stepladder.serve.studio.pairs.pair_readers import pair_readers
from stepladder.serve.studio.run_library import RunLibrary
from stepladder.serve.studio.site import Site

#: Rows of the list per request.
_PAGE = 200


class MarkRequest(RequestBody):
    """Pairs of one stage of a run."""

    run: str
    stage: str
    ids: Annotated[list[str], Field(min_length=1, max_length=1000)]
    note: Annotated[str, Field(max_length=MAX_NOTE)] = ""


Body = TypeVar("Body", bound=RequestBody)


def add_pairs_page(site: Site, runs: RunLibrary) -> None:
    """Add the page to a site. Before other addresses below /runs/: the name of a run may contain a slash."""
    router, indexes = APIRouter(), PairIndexes()

    def opened(run: str, stage: str) -> tuple[RunFolder, Path]:
        """A run, and the folder of the pairs of one of its stages."""
        folder = RunFolder.open(runs.folder(run))
        stages = folder.outputs(PAIRS)
        if stage not in stages:
            known = ", ".join(stages) or "none"
            raise HTTPError(404, f"the run {run} has no finished stage {stage[:80]!r} with pairs; it has: {known}")
        return folder, stages[stage]

    @router.get("/runs/{name:path}/pairs")
    def pairs_page(name: str, stage: str = "") -> HTMLResponse:
        try:
            stages = list(RunFolder.open(runs.folder(name)).outputs(PAIRS))
        except StepladderError as error:
            raise HTTPError(409, str(error)) from error
        if stage and stage not in stages:
            raise HTTPError(404, f"the run {name} has no finished stage {stage[:80]!r} with pairs")
        chosen = stage or (stages[-1] if stages else "")
        folder = str(runs.folder(name))
        return site.render("pairs.html", here="/", run=name, stages=stages, stage=chosen, folder=folder)

    @router.get("/pairs/list.json")
    def listed(
        run: str,
        stage: str,
        kind: str = "",
        judge: str = "",
        split: str = "",
        gold: str = "",
        marks: str = "",
        text: str = "",
        offset: int = 0,
    ) -> dict[str, Any]:
        return _known_errors(lambda: _list(run, stage, PairFilter(kind, judge, split, gold, marks, text), offset))

    def _list(run: str, stage: str, wanted: PairFilter, offset: int) -> dict[str, Any]:
        folder, pairs = opened(run, stage)
        index, found = indexes.of(pairs), read_marks(pairs)
        rows = [row for row in index.rows if wanted.shows(row, found)]
        return {
            "total": len(index.rows),
            "matching": len(rows),
            "offset": max(offset, 0),
            "rows": [{**row.data(), "mark": mark_data(found.get(row.id))} for row in rows[max(offset, 0) :][:_PAGE]],
            "facets": index.facets(),
            "marked": sum(row.id in found for row in index.rows),
            # Of pairs that were made by other settings: they are kept, and change nothing.
            "marks_of_others": sum(name not in index for name in found),
            "readers": pair_readers(folder, stage, found),
        }

    @router.get("/pairs/one.json")
    def one(run: str, stage: str, id: str) -> dict[str, Any]:
        return _known_errors(lambda: _one(run, stage, id))

    def _one(run: str, stage: str, name: str) -> dict[str, Any]:
        _, pairs = opened(run, stage)
        found = indexes.of(pairs).pair(name)
        if found is None:
            raise HTTPError(
                404, f"there is no pair {name[:40]!r} in stage {stage} of {run}: were the pairs made again?"
            )
        return pair_detail(*found, read_marks(pairs).get(name))

    @router.post("/pairs/mark")
    async def mark_pairs(request: Request) -> dict[str, Any]:
        body = MarkRequest.read(await request.body())
        return await run_in_threadpool(_known_errors, lambda: _change(body, marked=True))

    @router.post("/pairs/unmark")
    async def unmark_pairs(request: Request) -> dict[str, Any]:
        body = MarkRequest.read(await request.body())
        return await run_in_threadpool(_known_errors, lambda: _change(body, marked=False))

    def _change(body: MarkRequest, *, marked: bool) -> dict[str, Any]:
        folder, pairs = opened(body.run, body.stage)
        index = indexes.of(pairs)
        if unknown := next((each for each in body.ids if each not in index), None):
            raise HTTPError(404, f"there is no pair {unknown[:40]!r} in stage {body.stage} of {body.run}")
        found = mark(pairs, body.ids, body.note) if marked else unmark(pairs, body.ids)
        return {
            "marks": {each: mark_data(found.get(each)) for each in body.ids},
            "marked": _count(index, found),
            "readers": pair_readers(folder, body.stage, found),
        }

    site.add_page(router)


def _count(index: PairIndex, marks: dict[str, Any]) -> int:
    return sum(row.id in marks for row in index.rows)


def _known_errors(work: Any) -> dict[str, Any]:
    """The result. Files that cannot be read or written are an error of the run, not of the server."""
    try:
        result: dict[str, Any] = work()
        return result
    except StepladderError as error:
        raise HTTPError(409, str(error)) from error
