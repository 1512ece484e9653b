"""The page that compares runs: `/compare?runs=A&runs=B`.

In: the names of runs. Out: their scores, paired differences and costs side by side, as `stepladder compare` computes
them, of the last finished evaluation of each run's policy; and the curves of stages that they share. `/compare/result`
has the numbers, which take a while the first time.
"""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from stepladder.evaluation.evaluator import METRICS
from stepladder.reporting.compare import compare_arms, group_by_seed, load_sources
from stepladder.reporting.compare.compare_page import content_of
from stepladder.reporting.compare.evaluations import EvaluationSource
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.site import Site
from stepladder.serve.studio.watch.run_state import DAMAGE, RunState
from stepladder.serve.studio.watch.run_watch import RunWatch

#: Runs on one page, at most, and evaluations that are kept.
_MOST, _KEPT = 12, 24

Names = Annotated[list[str], Query(alias="runs", default_factory=list)]


class Evaluations:
    """The evaluations that were compared last. Reading one takes seconds: which questions a run used is looked up."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[tuple[object, ...], EvaluationSource] = OrderedDict()

    def source(self, folder: Path, stage: str) -> EvaluationSource:
        """An evaluation of a run."""
        key = folder, stage, *((path.name, path.stat().st_mtime_ns) for path in sorted(folder.glob("*/stage.json")))
        with self._lock:
            found = self._kept.pop(key, None) or load_sources([f"{folder}:{stage}"])[0]
            self._kept[key] = found
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return found


def add_comparison_page(site: Site, watch: RunWatch) -> None:
    """Add the page to a site."""
    router, read = APIRouter(), Evaluations()

    @router.get("/compare")
    def comparison_page(runs: Names) -> HTMLResponse:
        names = _checked(runs)
        for name in names:
            _evaluation(watch.readable(name))
        return site.render("comparison.html", here="/", runs=names)

    @router.get("/compare/result")
    def comparison_result(runs: Names, metric: str = "f1", against: str = "", join: str = "") -> dict[str, str]:
        names = _checked(runs)
        stages = {name: _evaluation(watch.readable(name)) for name in names}
        try:
            sources = [read.source(watch.runs.folder(name), stage) for name, stage in stages.items()]
            if not join:
                sources = [replace(source, label=name) for source, name in zip(sources, names, strict=True)]
            groups = group_by_seed(sources)
            known = [group.label for group in groups]
            compared = compare_arms(groups, metric, against=against if against in known else None)
            content = content_of(compared, compared.pairwise())
        except DAMAGE as error:
            raise HTTPError(409, str(error)) from error
        html = site.fragment(
            "run_comparison.html",
            runs=names,
            evaluated=list(stages.items()),
            different=len(set(stages.values())) > 1,
            metrics=sorted(METRICS),
            join=bool(join),
            **content,
        )
        return {"html": html}

    site.add_page(router)


def _checked(runs: list[str]) -> list[str]:
    """The names of the runs to compare, each once."""
    names = list(dict.fromkeys(runs))
    if not 2 <= len(names) <= _MOST:
        raise HTTPError(422, f"mark 2 to {_MOST} runs to compare on the page of all runs; found {len(names)}")
    return names


def _evaluation(run: RunState) -> str:
    """The evaluation of a run to compare."""
    if run.score is None:
        raise HTTPError(
            409, f"the run {run.name} has no finished evaluation of a policy yet: wait for it, or resume it"
        )
    return run.score.stage
