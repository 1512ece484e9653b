"""One run as the studio shows it: its state, stages, scores, alarms and cost.

In: a run folder, which may be written at this moment, damaged, or of another version. Out: a `RunState`, always. What
is wrong with a run is a part of it.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from stepladder.core.errors import StepladderError
from stepladder.evaluation.statistics import Interval
from stepladder.pipeline.recipe import Stage
from stepladder.pipeline.resources import ORACLE
from stepladder.pipeline.run_folder import OtherRunFormat, RunFolder, StageFailure, StageRecord
from stepladder.pipeline.runner import RunReport
from stepladder.pipeline.stage import EVALUATION, PAIRS, POLICY, TREES
from stepladder.pipeline.stage_summary import StageCost
from stepladder.pipeline.stages import get_stage
from stepladder.pipeline.tree_search import FILE
from stepladder.reporting.report.cost import total_cost
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.report.training_curves import CURVES
from stepladder.serve.studio.watch.run_memory import RunMemory
from stepladder.train.grpo.monitors import ALARMS, read_alarms

#: What reading a run that is damaged can raise.
DAMAGE = (StepladderError, OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError)
#: Begins to exist when a stage is started.
_STARTED = "started.json"
#: A file of a running process is replaced in a moment: what looks damaged is looked at once more after so many seconds.
_SECOND_LOOK = 0.05


class State(StrEnum):
    """The state of a run or a stage."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    PENDING = "pending"
    DAMAGED = "damaged"
    OTHER_VERSION = "other version"
    UNREAD = "not read yet"


@dataclass(frozen=True, slots=True)
class StageState:
    """One stage of a run."""

    name: str
    kind: str
    state: State
    #: Wall-clock seconds of all attempts; of a running stage those before this one.
    seconds: float = 0.0
    attempts: int = 0
    #: When a running stage was started, as a Unix time.
    since: float | None = None
    #: What a running stage has done, in words, and as a share if its end is known.
    progress: str = ""
    share: float | None = None
    #: Roles that it writes.
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """An evaluation of a trained policy."""

    stage: str
    questions: int
    f1: Interval
    em: Interval


@dataclass(frozen=True, slots=True)
class RunState:
    """A run."""

    name: str
    state: State
    #: What is wrong: why it failed or cannot be read.
    problem: str = ""
    #: The stage that failed.
    failed_stage: str = ""
    recipe: str = ""
    agent: str = ""
    policy: str = ""
    data: str = ""
    seed: int | None = None
    stages: tuple[StageState, ...] = ()
    #: The last evaluation of a model.
    score: Score | None = None
    alarms: int = 0
    #: Whether an alarm ended a training.
    stopped: bool = False
    seconds: float = 0.0
    cost: StageCost = field(default_factory=StageCost)
    #: When its last session began, and when one of its files was last changed, as Unix times.
    started: float = 0.0
    changed: float = 0.0

    @property
    def is_readable(self) -> bool:
        """Whether anything but its name is known."""
        return self.state not in (State.DAMAGED, State.OTHER_VERSION, State.UNREAD)

    @property
    def done(self) -> int:
        """Number of finished stages."""
        return sum(stage.state is State.FINISHED for stage in self.stages)

    @property
    def running(self) -> StageState | None:
        """The stage that runs."""
        return next((stage for stage in self.stages if stage.state is State.RUNNING), None)

    @property
    def with_trees(self) -> list[str]:
        """The stages that have search trees, or will have some soon."""
        return [each.name for each in self.stages if TREES in each.outputs and each.state is not State.PENDING]

    @property
    def with_pairs(self) -> list[str]:
        """The stages that have preference pairs."""
        return [each.name for each in self.stages if PAIRS in each.outputs and each.state is State.FINISHED]


def read_state(name: str, folder: Path, memory: RunMemory) -> RunState:
    """The state of a run now."""
    started, changed = _changed(folder / "run.json") or 0.0, _last_change(folder)
    for second in (False, True):
        try:
            return replace(_read(name, folder, memory), started=started, changed=changed)
        except OtherRunFormat as error:
            return RunState(name, State.OTHER_VERSION, str(error), started=started, changed=changed)
        except DAMAGE as error:
            if second:
                return RunState(name, State.DAMAGED, _words(error, folder), started=started, changed=changed)
            time.sleep(_SECOND_LOOK)
    raise AssertionError("two looks")


def _read(name: str, folder: Path, memory: RunMemory) -> RunState:
    run = RunFolder.open(folder)
    recipe, failure = memory.recipe(run), run.failure()
    done = {stage.name: record for stage in recipe.stages if (record := run.done(stage.name)) is not None}
    begun = {
        stage.name: record
        for stage in recipe.stages
        if stage.name not in done and (record := run.known(stage.name)) is not None
    }
    in_use = run.in_use()
    running = max(begun, key=lambda name: _changed(folder / name / _STARTED) or 0.0, default=None) if in_use else None
    stages = tuple(_stage(stage, folder, done, begun, running, failure, memory) for stage in recipe.stages)
    alarms = [alarm for stage in recipe.stages for alarm in read_alarms(folder / stage.name / ALARMS)]
    data = RunData(RunReport(recipe, folder, tuple(done.values()), (), None, {}), tuple(begun.values()), (), (), "")
    finished = len(done) == len(recipe.stages)
    if in_use:
        state = State.RUNNING
    elif finished:
        state = State.FINISHED
    else:
        state = State.INTERRUPTED if failure is None else State.FAILED
    problem = failure if state is State.FAILED else None
    return RunState(
        name,
        state,
        "" if problem is None else problem.message,
        "" if problem is None else problem.stage,
        recipe=recipe.name,
        agent=recipe.shared.agent,
        policy=recipe.shared.policy,
        data=recipe.shared.data.name or "question files",
        seed=recipe.seed,
        stages=stages,
        score=_score(list(done.values())),
        alarms=len(alarms),
        stopped=any(alarm.stopped for alarm in alarms),
        seconds=sum(each.seconds for each in (*done.values(), *begun.values())),
        cost=total_cost([memory.cost(data, record) for record in done.values()]),
    )


def _stage(
    stage: Stage,
    folder: Path,
    done: Mapping[str, StageRecord],
    begun: Mapping[str, StageRecord],
    running: str | None,
    failure: StageFailure | None,
    memory: RunMemory,
) -> StageState:
    outputs = get_stage(stage.kind).outputs
    if (record := done.get(stage.name)) is not None:
        return StageState(
            stage.name, stage.kind, State.FINISHED, record.seconds, record.attempts, outputs=tuple(record.outputs)
        )
    failed = failure is not None and failure.stage == stage.name and running is None
    if (record := begun.get(stage.name)) is None:
        return StageState(stage.name, stage.kind, State.FAILED if failed else State.PENDING, outputs=outputs)
    words, share = memory.progress(folder / stage.name, stage)
    state = State.RUNNING if stage.name == running else State.FAILED if failed else State.INTERRUPTED
    since = _changed(folder / stage.name / _STARTED) if state is State.RUNNING else None
    return StageState(
        stage.name, stage.kind, state, record.seconds, record.attempts, since, words, share, outputs=outputs
    )


def _changed(path: Path) -> float | None:
    """When a file was changed, as a Unix time."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _score(done: Sequence[StageRecord]) -> Score | None:
    """The last evaluation of a model."""
    for record in reversed(done):
        if EVALUATION in record.outputs and record.inputs.get(POLICY) != ORACLE:
            numbers: Mapping[str, Any] = record.summary
            f1, em = (Interval(**numbers[metric]) for metric in ("f1", "em"))
            return Score(record.name, int(numbers["questions"]), f1, em)
    return None


def _last_change(folder: Path) -> float:
    """When a file of the run or of one of its stages was last written, as a Unix time."""
    grown = (path for name in (CURVES, FILE) for path in folder.glob(f"*/{name}"))
    return max((_changed(path) or 0.0 for path in (folder, *folder.glob("*/"), *grown)), default=0.0)


def _words(error: BaseException, folder: Path) -> str:
    """What is wrong, in words. Paths are below the run."""
    if isinstance(error, OSError):
        words = f"{error.filename or folder} cannot be read: {error.strerror or error}"
    elif isinstance(error, StepladderError):
        words = str(error)
    else:
        words = f"the run cannot be read: {type(error).__name__}: {error}"
    return words.replace(f"{folder}{os.sep}", "")
