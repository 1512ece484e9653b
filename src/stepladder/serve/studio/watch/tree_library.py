"""The search trees of runs: an index per stage that has any.

In: a run and the name of a stage. Out: its `TreeIndex`, with the scores of the newest evaluation of a reward model that
scored these trees. The indexes that were used last are kept.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from stepladder.core.errors import StepladderError
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.stage import EXAMINATION
from stepladder.pipeline.tree_search import FILE
from stepladder.reporting.report.tree_view import scores_of_trees
from stepladder.serve.http.http_errors import HTTPError
from stepladder.serve.studio.watch.run_state import RunState, State
from stepladder.serve.studio.watch.run_watch import RunWatch
from stepladder.serve.studio.watch.tree_index import TreeIndex

#: Indexes that are kept.
_KEPT = 8


@dataclass(slots=True)
class _Indexed:
    """An index, with what it needs to be used by several threads."""

    index: TreeIndex
    lock: Lock = field(default_factory=Lock)
    #: The stage whose scores it uses, and what makes them old.
    scored_by: str = ""
    scores_of: object = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TreesNow:
    """The trees of a stage, while the index is held."""

    index: TreeIndex
    #: The evaluation of a reward model that scored them; empty if none did.
    scored_by: str
    #: Whether more trees may come.
    growing: bool
    #: What is wrong; empty if nothing is.
    problem: str


class TreeLibrary:
    """The trees of all runs. Its methods may be called from any thread."""

    def __init__(self, watch: RunWatch) -> None:
        self._watch = watch
        self._lock = Lock()
        self._kept: OrderedDict[Path, _Indexed] = OrderedDict()

    def stages(self, run: str) -> tuple[RunState, list[str]]:
        """A run and the stages of it that have a file of trees. Raises `HTTPError` if it cannot be read."""
        state = self._watch.readable(run)
        folder = self._watch.runs.folder(run)
        return state, [stage for stage in state.with_trees if (folder / stage / FILE).is_file()]

    @contextmanager
    def trees(self, run: str, stage: str, seconds: float) -> Iterator[TreesNow]:
        """The trees of a stage, read on for at most so many seconds."""
        state, stages = self.stages(run)
        if stage not in stages:
            has = f"it has trees of {', '.join(stages)}" if stages else "it has no trees yet"
            raise HTTPError(404, f"the run {run} has no trees of a stage {stage[:100]!r}: {has}")
        folder = self._watch.runs.folder(run)
        path = folder / stage / FILE
        with self._lock:
            held = self._kept.pop(path, None) or _Indexed(TreeIndex(path))
            self._kept[path] = held
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        growing = any(each.name == stage and each.state is State.RUNNING for each in state.stages)
        with held.lock:
            _use_scores(held, folder, state, path)
            held.index.update(seconds)
            cut = f"{path} ends in the middle of a tree" if held.index.leftover and not growing else ""
            yield TreesNow(held.index, held.scored_by, growing, held.index.problem or cut or held.problem)


def _use_scores(held: _Indexed, folder: Path, state: RunState, trees: Path) -> None:
    """Give an index the newest scores of its trees."""
    examined = [each.name for each in state.stages if EXAMINATION in each.outputs and each.state is State.FINISHED]
    found = trees.stat()
    key = (tuple(examined), found.st_size, found.st_mtime_ns)
    if key == held.scores_of:
        return
    held.scores_of, held.problem = key, ""
    try:
        held.scored_by, scores = scores_of_trees(folder, _records(folder, examined), trees)
        held.index.use_scores(scores)
    except (StepladderError, OSError) as error:
        held.problem = f"the PRM scores cannot be read: {error}"


def _records(folder: Path, names: Sequence[str]) -> list[StageRecord]:
    run = RunFolder(folder)
    return [record for name in names if (record := run.done(name)) is not None]
