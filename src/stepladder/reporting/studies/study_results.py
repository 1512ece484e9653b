"""The results of a study: a number per arm and seed, paired differences between arms, and what each arm consumed.

In: a prepared study, its folder and its registration. Out: `StudyResults`. Differences are paired by seed: same initial
policy, same questions. Runs that are not finished are listed, never excluded: without them there is no verdict.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from stepladder.evaluation.statistics import Interval
from stepladder.reporting.charts.figures import Point
from stepladder.reporting.studies.study_arms import own_stages, recipe_of
from stepladder.reporting.studies.study_gates import measured_gates
from stepladder.reporting.studies.study_ledger import Ledger, mean_ledger
from stepladder.reporting.studies.study_registration import Registration
from stepladder.reporting.studies.study_run_result import RunReader, RunResult
from stepladder.reporting.studies.study_spec import Study
from stepladder.reporting.studies.study_statistics import MIN_SEEDS, holm, paired_p, t_interval


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
    #: Mean F1 of checkpoints by update.
    curve: tuple[Point, ...] = ()
    #: Means over the seeds of the numbers by number of hops, if the study names an evaluation for this.
    by_hops: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

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
    #: What the shared stages had reached, by gate and seed.
    gates: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

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
    shared = [run.shared for run in reader.by_seed.values() if run.shared is not None]
    return StudyResults(
        study,
        arms,
        compare_arms_by_seed(study, arms),
        tuple(reader.unfinished),
        dict(sorted(reader.starts.items())),
        mean_ledger(shared) if shared else None,
        registration,
        reader.sessions,
        reader.seconds,
        _gates(study, folder),
    )


def _gates(study: Study, folder: Path) -> dict[str, dict[int, float]]:
    by_seed = {seed: measured_gates(study, folder, seed) for seed in study.seed_list}
    return {gate: {seed: found[gate] for seed, found in by_seed.items() if gate in found} for gate in study.gates}


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
        self.study, self.runs = study, RunReader(study, folder)
        self.unfinished: list[Unfinished] = []
        self.by_seed: dict[int, RunResult] = {}
        self.starts: dict[int, float] = {}
        self.sessions: dict[str, tuple[Mapping[str, Any], ...]] = {}
        self.seconds = 0.0

    def arm(self, name: str) -> ArmResult:
        """One arm over its finished seeds."""
        found: dict[int, RunResult] = {}
        for seed in self.study.seed_list:
            run = self.runs.read(seed, name)
            if isinstance(run, str):
                self.unfinished.append(Unfinished(seed, name, run))
                continue
            found[seed] = run
            if seed not in self.by_seed:  # the shared stages count once
                self.by_seed[seed] = run
                self.seconds += run.shared_seconds
            self.seconds += run.seconds
            if (start := self._start(seed, name, run)) is not None:
                self.starts[seed] = start
            self.sessions[f"seed-{seed}/{name}"] = run.sessions
        curves = [run.curve for run in found.values()]
        steps = sorted({step for curve in curves for step in curve})
        points = (point_of(step, [curve[step] for curve in curves if step in curve]) for step in steps)
        return ArmResult(
            name,
            {seed: run.value for seed, run in found.items()},
            {seed: run.ledger for seed, run in found.items()},
            {seed: run.total for seed, run in found.items()},
            tuple(points),
            _mean_groups([run.by_hops for run in found.values()]),
        )

    def _start(self, seed: int, arm: str, run: RunResult) -> float | None:
        """The number of the initial policy: of the last shared stage, or of training before its first update."""
        estimand = self.study.estimand
        by_training = estimand.last_checkpoints is not None and estimand.metric in ("dev_f1", "test_f1")
        if not by_training or self.study.shared is None:
            return run.start
        own = [stage.name for stage in own_stages(self.study, recipe_of(self.study, seed, arm))]
        return run.curve.get(0) if own == [estimand.stage] else None


# --- curves -------------------------------------------------------------------------------------------------------


def point_of(x: float, values: Sequence[float]) -> Point:
    """The point of a curve, from repeated runs; without a band with too few of them."""
    mean = math.fsum(values) / len(values)
    found = method_interval(values) or Interval(mean, mean, mean)
    return Point(x, found.mean, found.low, found.high, len(values))


def _mean_groups(runs: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The mean of every number by group over the runs that have it."""
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for group, numbers in run.items():
            for name, value in numbers.items():
                values[group][name].append(value)
    return {group: {name: fmean(each) for name, each in found.items()} for group, found in sorted(values.items())}


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
