"""The results of a study: a number per arm and seed, paired differences between arms, and what each arm consumed.

In: a prepared study, its folder and its registration. Out: `StudyResults`. Differences are paired by seed: same initial
policy, same questions. Runs that are not finished are listed, never excluded: without them there is no verdict.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.evaluation.statistics import Interval
from stepladder.pipeline.run_folder import RunFolder, StageRecord, is_run
from stepladder.reporting.charts.figures import Point
from stepladder.reporting.report.run_data import RunData, load_run
from stepladder.reporting.studies.study_arms import own_stages, recipe_of
from stepladder.reporting.studies.study_ledger import Ledger, LedgerReader, mean_ledger
from stepladder.reporting.studies.study_registration import Registration
from stepladder.reporting.studies.study_runner import run_folder
from stepladder.reporting.studies.study_spec import SHARED, Estimand, Study
from stepladder.reporting.studies.study_statistics import MIN_SEEDS, holm, paired_p, t_interval
from stepladder.train.loop.metrics_log import read_metrics


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The results of one arm over its finished seeds."""

    name: str
    #: The estimand by seed.
    values: Mapping[int, float]
    #: What the stages that it does not share consumed, by seed.
    ledgers: Mapping[int, Ledger] = field(default_factory=dict)
    #: The same with the stages that it shares.
    totals: Mapping[int, Ledger] = field(default_factory=dict)
    #: Mean dev F1 by update.
    curve: tuple[Point, ...] = ()

    @property
    def interval(self) -> Interval | None:
        """The mean with its interval; None with too few seeds."""
        return method_interval(list(self.values.values()))

    @property
    def ledger(self) -> Ledger:
        """The mean ledger of its own stages."""
        return mean_ledger(list(self.ledgers.values()))


@dataclass(frozen=True, slots=True)
class ContrastResult:
    """A planned comparison: the first arm minus the second, by seed."""

    name: str
    first: str
    second: str
    differences: Mapping[int, float]
    #: None with too few seeds.
    interval: Interval | None = None
    p: float | None = None
    #: Adjusted for the number of contrasts.
    p_holm: float | None = None


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run without a result."""

    seed: int
    arm: str
    state: str


@dataclass(frozen=True, slots=True)
class StudyResults:
    """The results of a study."""

    study: Study
    arms: tuple[ArmResult, ...]
    contrasts: tuple[ContrastResult, ...]
    unfinished: tuple[Unfinished, ...] = ()
    #: The estimand of the last shared stage by seed, if that stage has it: the initial policy.
    start: Mapping[int, float] = field(default_factory=dict)
    #: What the shared stages of a seed consumed, on average.
    shared: Ledger | None = None
    registration: Registration | None = None
    #: The sessions of each run: command, commit, versions, machine.
    sessions: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    #: Seconds of all stages of all runs, the shared ones once.
    seconds: float = 0.0

    def arm(self, name: str) -> ArmResult:
        """An arm by its name."""
        return next(each for each in self.arms if each.name == name)


def method_interval(values: Sequence[float]) -> Interval | None:
    """The mean over seeds with its interval; None with fewer than five seeds."""
    return t_interval(values) if len(values) >= MIN_SEEDS else None


def read_results(study: Study, folder: Path, registration: Registration | None = None) -> StudyResults:
    """The results of a prepared study, as far as its runs are finished."""
    reader = _Reader(study, folder)
    arms = tuple(map(reader.arm, study.arms))
    shared = list(reader.shared_ledgers.values())
    return StudyResults(
        study,
        arms,
        compare_arms_by_seed(study, arms),
        tuple(reader.unfinished),
        reader.start(),
        mean_ledger(shared) if shared else None,
        registration,
        reader.sessions,
        reader.seconds,
    )


def compare_arms_by_seed(study: Study, arms: Sequence[ArmResult]) -> tuple[ContrastResult, ...]:
    """The contrasts over the seeds that both arms have finished, with Holm's correction over all contrasts."""
    values = {arm.name: arm.values for arm in arms}
    found = []
    for name, (first, second) in study.contrasts.items():
        common = [seed for seed in study.seed_list if seed in values[first] and seed in values[second]]
        differences = {seed: values[first][seed] - values[second][seed] for seed in common}
        listed = list(differences.values())
        p = paired_p(listed) if len(listed) >= MIN_SEEDS else None
        found.append(ContrastResult(name, first, second, differences, method_interval(listed), p))
    # A contrast that cannot be tested yet counts as well: it will be.
    adjusted = holm({each.name: 1.0 if each.p is None else each.p for each in found})
    return tuple(replace(each, p_holm=None if each.p is None else adjusted[each.name]) for each in found)


class _Reader:
    """Reads the runs of a study."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self.ledgers = LedgerReader()
        self.unfinished: list[Unfinished] = []
        self.shared_ledgers: dict[int, Ledger] = {}
        self.sessions: dict[str, tuple[Mapping[str, Any], ...]] = {}
        self.seconds = 0.0

    def arm(self, name: str) -> ArmResult:
        """One arm over its finished seeds."""
        recipe = recipe_of(self.study, self.study.seed_list[0], name)
        own = [stage.name for stage in own_stages(self.study, recipe)]
        shared = [stage.name for stage in recipe.stages if stage.name not in own]
        counted = self.study.estimand.stage if self.study.budget and self.study.budget.evaluation else None
        values, ledgers, totals, curves = {}, {}, {}, []
        for seed in self.study.seed_list:
            path = run_folder(self.folder, seed, name)
            if (state := _unfinished_state(path, [*shared, *own])) is not None:
                self.unfinished.append(Unfinished(seed, name, state))
                continue
            run = load_run(path)
            values[seed] = estimate(self.study.estimand, run)
            ledgers[seed] = self.ledgers.read(run, own, counted)
            totals[seed] = self.ledgers.read(run, [*shared, *own], counted)
            if shared and seed not in self.shared_ledgers:
                self.shared_ledgers[seed] = self.ledgers.read(run, shared)
                self.seconds += sum(each.seconds for each in run.report.stages if each.name in shared)
            self.seconds += sum(each.seconds for each in run.report.stages if each.name in own)
            self.sessions[f"seed-{seed}/{name}"] = run.sessions
            curves.append(_dev_curve(path / own[0] / "curves.jsonl"))
        steps = sorted({step for curve in curves for step in curve})
        points = (point_of(step, [curve[step] for curve in curves if step in curve]) for step in steps)
        return ArmResult(name, values, ledgers, totals, tuple(points))

    def start(self) -> dict[int, float]:
        """The estimand of the last shared stage by seed, if that stage is of the same kind."""
        study, found = self.study, dict[int, float]()
        if study.shared is None or study.estimand.last_checkpoints is not None:
            return {}
        for seed in study.seed_list:
            path = run_folder(self.folder, seed, SHARED)
            record = RunFolder(path).done(study.shared) if is_run(path) else None
            value = None if record is None else _number(record.summary, study.estimand.metric)
            if value is not None and record is not None and record.kind == self._kind_of_result():
                found[seed] = value
        return found

    def _kind_of_result(self) -> str:
        recipe = recipe_of(self.study, self.study.seed_list[0], self.study.baseline)
        return next(stage.kind for stage in recipe.stages if stage.name == self.study.estimand.stage)


def _unfinished_state(path: Path, stages: Sequence[str]) -> str | None:
    """What a run is waiting for; None if all of its stages are done."""
    if not is_run(path):
        return "not started"
    run = RunFolder.open(path)
    left = next((name for name in stages if run.done(name) is None), None)
    return None if left is None else f"interrupted before the end of {left}"


# --- the estimand -------------------------------------------------------------------------------------------------


def estimate(estimand: Estimand, run: RunData) -> float:
    """The estimand of a finished run."""
    record = next(each for each in run.report.stages if each.name == estimand.stage)
    if estimand.last_checkpoints is not None:
        return _last_checkpoints(estimand, run.folder / estimand.stage / "curves.jsonl", estimand.last_checkpoints)
    value = _number(record.summary, estimand.metric)
    if value is None:
        raise StepladderError(
            f"{run.folder}: the stage {estimand.stage} has no number '{estimand.metric}'. It has: "
            f"{', '.join(_numbers_in(record))}"
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


def _number(summary: Mapping[str, Any], metric: str) -> float | None:
    """A number of a summary, by its name with dots; of a group with a mean, the mean."""
    value: Any = summary
    for part in metric.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, Mapping):
        value = value.get("mean")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _numbers_in(record: StageRecord) -> list[str]:
    return [name for name in record.summary if _number(record.summary, name) is not None]


def _dev_curve(path: Path) -> dict[int, float]:
    return {row["step"]: row["dev_f1"] for row in read_metrics(path) if "dev_f1" in row} if path.exists() else {}


# --- curves -------------------------------------------------------------------------------------------------------


def point_of(x: float, values: Sequence[float]) -> Point:
    """The point of a curve, from repeated runs; without a band with too few of them."""
    mean = math.fsum(values) / len(values)
    found = method_interval(values) or Interval(mean, mean, mean)
    return Point(x, found.mean, found.low, found.high, len(values))


def questions_to_reach(score: float, points: Sequence[Point]) -> float | None:
    """The x at which a curve first reaches a score, interpolated on a log scale; None if it does not.

    >>> questions_to_reach(0.75, [Point(32, 0.7, 0, 0, 5), Point(128, 0.8, 0, 0, 5)])
    64.0
    """
    if points and points[0].mean >= score:
        return points[0].x
    for before, after in pairwise(points):
        if before.mean < score <= after.mean:
            share = (score - before.mean) / (after.mean - before.mean)
            return float(before.x * (after.x / before.x) ** share)
    return None


def study_curves(results: StudyResults) -> dict[str, tuple[Point, ...]]:
    """The curves whose points are the arms, by name."""
    found: dict[str, list[Point]] = {}
    for arm in results.arms:
        if arm.values and arm.name in results.study.points:
            name, x = results.study.points[arm.name]
            found.setdefault(name, []).append(point_of(x, list(arm.values.values())))
    return {name: tuple(sorted(points, key=lambda point: point.x)) for name, points in found.items()}


def curve_differences(results: StudyResults) -> dict[str, dict[int, float]]:
    """The mean difference between two curves over their contrasts, by the seeds that all of them have."""
    found: dict[str, list[Mapping[int, float]]] = {}
    points = results.study.points
    for each in results.contrasts if points else ():
        found.setdefault(f"{points[each.first][0]} - {points[each.second][0]}", []).append(each.differences)
    means: dict[str, dict[int, float]] = {}
    for pair, differences in found.items():
        common = [seed for seed in results.study.seed_list if all(seed in each for each in differences)]
        means[pair] = {seed: math.fsum(each[seed] for each in differences) / len(differences) for seed in common}
    return means
