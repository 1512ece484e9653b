"""The results of a study: one row per arm with an interval over seeds, and paired differences between arms.

In: the folder of a study. Out: `StudyResults`. Intervals are over seeds: Student's t of the means, which assumes that
they are roughly normal, and which is wide for five seeds. Differences are paired by seed: same initial policy, same
questions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.evaluation.evaluator import compare, load_scores
from stepladder.evaluation.statistics import Interval
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.stage import EVALUATION
from stepladder.reporting.charts.figures import Point
from stepladder.reporting.studies.study_runner import SHARED, run_folder
from stepladder.reporting.studies.study_spec import Study
from stepladder.train.loop.metrics_log import read_metrics

#: Quantiles of Student's t for a 95% interval, by degrees of freedom from 1 on.
_NORMAL = 1.960
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
#: The fields of a point of a learning curve, in study.json.
_CURVE_KEYS = ("update", "mean", "low", "high", "runs")


@dataclass(frozen=True, slots=True)
class ArmResult:
    """The results of one arm over its seeds."""

    name: str
    #: Test F1 by seed.
    f1: Mapping[int, float]
    mean: Interval
    #: The arm it is compared with (None: no comparison), and the difference in F1 by seed.
    against: str | None
    differences: Mapping[int, float]
    difference: Interval | None
    #: Mean cost: questions, steps (updates), episodes, generated tokens.
    cost: Mapping[str, float]
    #: Mean dev F1 by update.
    curve: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class StudyResults:
    """The results of a study."""

    study: Study
    seeds: tuple[int, ...]
    #: F1 of the shared initial policy.
    start: Interval
    arms: tuple[ArmResult, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON-compatible data."""
        return {
            "study": self.study.name,
            "about": self.study.about,
            "seeds": list(self.seeds),
            "start": self._interval(self.start),
            "over_places": {pair: self._interval(found) for pair, found in curve_differences(self).items()},
            "arms": {
                arm.name: {
                    "f1": self._interval(arm.mean),
                    "by_seed": {str(seed): value for seed, value in arm.f1.items()},
                    "against": arm.against,
                    "difference": None if arm.difference is None else self._interval(arm.difference),
                    "differences": {str(seed): value for seed, value in arm.differences.items()},
                    "cost": dict(arm.cost),
                    "curve": [dict(zip(_CURVE_KEYS, astuple(point))) for point in arm.curve],
                }
                for arm in self.arms
            },
        }

    def _interval(self, found: Interval) -> dict[str, float | None]:
        known = len(self.seeds) > 1  # a single run has no interval
        return {"mean": found.mean, "low": found.low if known else None, "high": found.high if known else None}


def read_results(study: Study, folder: Path, seeds: Sequence[int]) -> StudyResults:
    """The results of a study. Raises if a run is missing or not finished."""
    start = [_f1(_record(run_folder(folder, seed, SHARED), study.shared)) for seed in seeds]
    return StudyResults(
        study, tuple(seeds), mean_over_runs(start), tuple(_read_arm(study, folder, arm, seeds) for arm in study.arms)
    )


def _read_arm(study: Study, folder: Path, arm: str, seeds: Sequence[int]) -> ArmResult:
    runs = {seed: run_folder(folder, seed, arm) for seed in seeds}
    f1 = {seed: _f1(_record(run, study.result)) for seed, run in runs.items()}
    against = study.against.get(arm)
    differences: dict[int, float] = {}
    if against is not None:
        differences = {
            seed: compare(
                load_scores(run / study.result / EVALUATION),
                load_scores(run_folder(folder, seed, against) / study.result / EVALUATION),
            ).difference.mean
            for seed, run in runs.items()
        }
    summaries = [_record(run, study.stage).summary for run in runs.values()]
    cost = {
        name: float(np.mean([summary[name] for summary in summaries]))
        for name in ("questions", "steps", "episodes", "tokens_sampled")
        if all(name in summary for summary in summaries)
    }
    curves = [_dev_curve(run / study.stage / "curves.jsonl") for run in runs.values()]
    steps = sorted({step for curve in curves for step in curve})
    return ArmResult(
        arm,
        f1,
        mean_over_runs(list(f1.values())),
        against,
        differences,
        mean_over_runs(list(differences.values())) if differences else None,
        cost,
        tuple(point_of(step, [curve[step] for curve in curves if step in curve]) for step in steps),
    )


def mean_over_runs(values: Sequence[float]) -> Interval:
    """The mean over runs with a Student's t interval; for one run the interval is the value itself.

    >>> mean_over_runs([0.5, 0.5, 0.5])
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, mean, mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    freedom = len(values) - 1
    # Beyond the table: the first terms of the series of the quantile.
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * freedom)
    reach = error * quantile
    return Interval(mean, mean - reach, mean + reach)


def point_of(x: float, values: Sequence[float]) -> Point:
    """The point of a curve, from repeated runs."""
    found = mean_over_runs(values)
    return Point(x, found.mean, found.low, found.high, len(values))


def questions_to_reach(f1: float, points: Sequence[Point]) -> float | None:
    """The x at which a curve first reaches a score, interpolated on a log scale; None if it does not.

    >>> questions_to_reach(0.75, [Point(32, 0.7, 0, 0, 5), Point(128, 0.8, 0, 0, 5)])
    64.0
    """
    if points and points[0].mean >= f1:
        return points[0].x
    for before, after in pairwise(points):
        if before.mean < f1 <= after.mean:
            share = (f1 - before.mean) / (after.mean - before.mean)
            return float(before.x * (after.x / before.x) ** share)
    return None


def study_curves(results: StudyResults) -> dict[str, tuple[Point, ...]]:
    """The curves whose points are the arms, by name."""
    found: dict[str, list[Point]] = {}
    for arm in results.arms:
        name, x = results.study.points[arm.name]
        found.setdefault(name, []).append(point_of(x, list(arm.f1.values())))
    return {name: tuple(sorted(points, key=lambda point: point.x)) for name, points in found.items()}


def curve_differences(results: StudyResults) -> dict[str, Interval]:
    """The mean difference between two curves over their points, with an interval over seeds."""
    found: dict[str, list[Mapping[int, float]]] = {}
    points = results.study.points
    for arm in results.arms:
        if arm.against is not None and points:
            found.setdefault(f"{points[arm.name][0]} - {points[arm.against][0]}", []).append(arm.differences)
    return {
        pair: mean_over_runs(
            [math.fsum(each[seed] for each in differences) / len(differences) for seed in results.seeds]
        )
        for pair, differences in found.items()
    }


def _record(run: Path, stage: str) -> StageRecord:
    record = RunFolder.open(run).done(stage)
    if record is None:
        raise StepladderError(f"the stage '{stage}' of the run {run} is not finished: rerun the study to resume it")
    return record


def _f1(record: StageRecord) -> float:
    return float(record.summary["f1"]["mean"])


def _dev_curve(path: Path) -> dict[int, float]:
    return {row["step"]: row["dev_f1"] for row in read_metrics(path) if "dev_f1" in row}
