"""The result of one run of a study: its number, what it consumed, its curve.

In: the run, `FOLDER/seed-N/ARM`. Out: a `RunResult`; or why there is none yet. `keep_result` writes it beside the run,
as `FOLDER/seed-N/ARM.json`, and deletes the run: the result is all that the study needs, a few kilobytes instead of a
few hundred megabytes. The folder of such a study can be copied to another machine, where the same command resumes.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.pipeline.run_folder import RunFolder, StageRecord, is_run
from stepladder.reporting.report.run_data import RunData, load_run
from stepladder.reporting.studies.study_arms import own_stages, recipe_of
from stepladder.reporting.studies.study_ledger import Ledger, LedgerReader
from stepladder.reporting.studies.study_spec import SHARED, Estimand, Study
from stepladder.train.loop.metrics_log import read_metrics


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a study needs to know of a finished run."""

    #: The estimand.
    value: float
    #: What its own stages consumed, those that it shares, and both.
    ledger: Ledger
    shared: Ledger | None
    total: Ledger
    #: Seconds of its own stages, and of those that it shares.
    seconds: float
    shared_seconds: float
    #: The estimand of the last shared stage, if that stage is of the same kind: the initial policy.
    start: float | None = None
    #: Command, commit, versions and machine of every session.
    sessions: tuple[dict[str, Any], ...] = ()
    #: F1 of checkpoints by update.
    curve: dict[int, float] = field(default_factory=dict)
    #: Of the evaluation `by_hops` of the study: its numbers by number of hops.
    by_hops: dict[str, dict[str, float]] = field(default_factory=dict)


_ADAPTER = TypeAdapter(RunResult)


def run_folder(folder: Path, seed: int, arm: str) -> Path:
    """The folder of a run of the study."""
    return folder / f"seed-{seed}" / arm


def result_file(folder: Path, seed: int, arm: str) -> Path:
    """The file of a result that is kept without its run."""
    return folder / f"seed-{seed}" / f"{arm}.json"


class RunReader:
    """Reads the runs of a study. Keeps the data sets that it opens."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder, self.ledgers = study, folder, LedgerReader()

    def read(self, seed: int, arm: str) -> RunResult | str:
        """The result of a run; or, in words, what it is waiting for, or why it cannot be read."""
        try:
            return self._read(seed, arm)
        except (StepladderError, OSError, KeyError, ValueError) as error:  # ValueError: also what pydantic raises
            return f"cannot be read: {error}"

    def _read(self, seed: int, arm: str) -> RunResult | str:
        kept = result_file(self.folder, seed, arm)
        if kept.is_file():
            return _ADAPTER.validate_json(kept.read_bytes())
        path = run_folder(self.folder, seed, arm)
        recipe = recipe_of(self.study, seed, arm)
        own = [stage.name for stage in own_stages(self.study, recipe)]
        shared = [stage.name for stage in recipe.stages if stage.name not in own]
        if (state := _unfinished_state(path, [*shared, *own])) is not None:
            return state
        run = load_run(path)
        counted = self.study.estimand.stage if self.study.budget and self.study.budget.evaluation else None
        return RunResult(
            estimate(self.study.estimand, run),
            self.ledgers.read(run, own, counted),
            self.ledgers.read(run, shared) if shared else None,
            self.ledgers.read(run, [*shared, *own], counted),
            sum(each.seconds for each in run.report.stages if each.name in own),
            sum(each.seconds for each in run.report.stages if each.name in shared),
            self._start(run),
            run.sessions,
            _curve(path / own[0] / "curves.jsonl"),
            next((each.summary["by_hops"] for each in run.report.stages if each.name == self.study.by_hops), {}),
        )

    def keep_result(self, seed: int, arm: str) -> str | None:
        """Write the result of a run and delete the run; with the last one that which they share.

        A run without a result is not touched; why is returned.
        """
        kept, found = result_file(self.folder, seed, arm), self.read(seed, arm)
        if isinstance(found, str):
            return found
        try:
            if not kept.is_file():
                with atomic_file(kept) as file:
                    file.write(_ADAPTER.dump_json(found, indent=1).decode() + "\n")
        except (StepladderError, OSError) as error:
            return f"its result cannot be written: {error}"
        shutil.rmtree(run_folder(self.folder, seed, arm), ignore_errors=True)
        if all(result_file(self.folder, seed, each).is_file() for each in self.study.arms):
            shutil.rmtree(run_folder(self.folder, seed, SHARED), ignore_errors=True)
        return None

    def _start(self, run: RunData) -> float | None:
        study = self.study
        if study.shared is None or study.estimand.last_checkpoints is not None:
            return None
        records = {each.name: each for each in run.report.stages}
        before, result = records.get(study.shared), records[study.estimand.stage]
        if before is None or before.kind != result.kind:
            return None
        return number_in(before.summary, study.estimand.metric)


def _unfinished_state(path: Path, stages: Sequence[str]) -> str | None:
    """What a run is waiting for; None if all of its stages are done."""
    if not is_run(path):
        return "not started"
    run = RunFolder.open(path)
    left = next((name for name in stages if run.done(name) is None), None)
    return None if left is None else f"interrupted before the end of {left}"


def estimate(estimand: Estimand, run: RunData) -> float:
    """The estimand of a finished run."""
    record = next(each for each in run.report.stages if each.name == estimand.stage)
    if estimand.last_checkpoints is not None:
        return _last_checkpoints(estimand, run.folder / estimand.stage / "curves.jsonl", estimand.last_checkpoints)
    value = number_in(record.summary, estimand.metric)
    if value is None:
        raise StepladderError(
            f"{run.folder}: the stage {estimand.stage} has no number '{estimand.metric}'. It has: "
            f"{', '.join(numbers_in(record))}"
        )
    return value


def _last_checkpoints(estimand: Estimand, path: Path, count: int) -> float:
    """The mean over the last evaluations during training, whichever checkpoint was kept."""
    rows = [row[estimand.metric] for row in read_metrics(path) if estimand.metric in row] if path.exists() else []
    if len(rows) < count:
        raise StepladderError(
            f"{path}: found {len(rows)} evaluations with '{estimand.metric}', and the study takes the mean of the last "
            f"{count}: lower eval_steps of the stage {estimand.stage}, or last_checkpoints"
        )
    return math.fsum(rows[-count:]) / count


def number_in(summary: Mapping[str, Any], metric: str) -> float | None:
    """A number of a summary, by its name with dots; of a group with a mean, the mean."""
    value: Any = summary
    for part in metric.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("mean")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def numbers_in(record: StageRecord) -> list[str]:
    """The names of the numbers in the summary of a stage, without nested ones."""
    return [name for name in record.summary if number_in(record.summary, name) is not None]


def _curve(path: Path) -> dict[int, float]:
    """F1 of the evaluations during training, on dev or test questions, by update."""
    rows = read_metrics(path) if path.exists() else []
    return {row["step"]: row[name] for row in rows for name in ("dev_f1", "test_f1") if name in row}
