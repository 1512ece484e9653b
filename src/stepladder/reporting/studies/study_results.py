"""What came of a study: one row an arm with an interval over its seeds, and paired differences between arms.

In: the folder of a study. Out: `Results`. Seeds are what is repeated, so intervals are over seeds: Student's t of their
means, which presumes that these are spread about normally, and with five is wide. A difference is taken within a seed,
from the same beginning and on the same questions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.evaluate.evaluator import compare, load_scores
from stepladder.evaluate.statistics import Interval
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.stage import EVALUATION
from stepladder.reporting.charts.band_plot import Point
from stepladder.reporting.studies.study_runner import SHARED, run_folder
from stepladder.reporting.studies.study_spec import Study
from stepladder.train.loop.metrics_log import read_metrics

#: Quantiles of Student's t for an interval of 95%, by degrees of freedom from 1 on.
_NORMAL = 1.960
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm came to, over its seeds."""

    name: str
    #: By seed.
    f1: Mapping[int, float]
    mean: Interval
    #: The arm that it is compared with, and F1 less that arm's, by seed; nothing where it is compared with none.
    against: str | None
    differences: Mapping[int, float]
    difference: Interval | None
    #: What it took, on average: questions, steps (updates), episodes, tokens that the policy wrote.
    cost: Mapping[str, float]
    #: Mean F1 on dev questions by update.
    curve: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """A study that has been carried out."""

    study: Study
    seeds: tuple[int, ...]
    #: F1 where all arms begin.
    start: Interval
    arms: tuple[ArmResult, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "study": self.study.name,
            "about": self.study.about,
            "seeds": list(self.seeds),
            "start": self._interval(self.start),
            "over_places": {pair: self._interval(found) for pair, found in over_places(self).items()},
            "arms": {
                arm.name: {
                    "f1": self._interval(arm.mean),
                    "by_seed": {str(seed): value for seed, value in arm.f1.items()},
                    "against": arm.against,
                    "difference": None if arm.difference is None else self._interval(arm.difference),
                    "differences": {str(seed): value for seed, value in arm.differences.items()},
                    "cost": dict(arm.cost),
                    "curve": [
                        {
                            "update": point.x,
                            "mean": point.mean,
                            "low": point.low,
                            "high": point.high,
                            "runs": point.runs,
                        }
                        for point in arm.curve
                    ],
                }
                for arm in self.arms
            },
        }

    def _interval(self, found: Interval) -> dict[str, float | None]:
        known = len(self.seeds) > 1  # of one run no interval is known
        return {"mean": found.mean, "low": found.low if known else None, "high": found.high if known else None}


def read_results(study: Study, folder: Path, seeds: Sequence[int]) -> Results:
    """The results of runs that are all there."""
    start = [_f1(_record(run_folder(folder, seed, SHARED), study.shared)) for seed in seeds]
    return Results(
        study, tuple(seeds), over_runs(start), tuple(_read_arm(study, folder, arm, seeds) for arm in study.arms)
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
    return ArmResult(
        arm,
        f1,
        over_runs(list(f1.values())),
        against,
        differences,
        over_runs(list(differences.values())) if differences else None,
        cost,
        tuple(point_of(step, [curve[step] for curve in curves if step in curve]) for step in _steps(curves)),
    )


def over_runs(values: Sequence[float]) -> Interval:
    """The mean of runs, and Student's interval of it; of one run that is the run itself: no interval is known.

    >>> over_runs([0.5, 0.5, 0.5])
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, mean, mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = error * _quantile(len(values) - 1)
    return Interval(mean, mean - reach, mean + reach)


def _quantile(freedom: int) -> float:
    """Student's, for an interval of 95%; beyond the table by the first terms of its series."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    return _NORMAL + (_NORMAL**3 + _NORMAL) / (4 * freedom)


def point_of(x: float, values: Sequence[float]) -> Point:
    """Runs at one place of a curve."""
    found = over_runs(values)
    return Point(x, found.mean, found.low, found.high, len(values))


def questions_to_reach(f1: float, points: Sequence[Point]) -> float | None:
    """Where a curve first comes to a score, between its points on a logarithmic scale; None if it does not.

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


def curves_of(results: Results) -> dict[str, tuple[Point, ...]]:
    """Where arms are points of curves: the curves, by name."""
    found: dict[str, list[Point]] = {}
    for arm in results.arms:
        name, x = results.study.places[arm.name]
        found.setdefault(name, []).append(point_of(x, list(arm.f1.values())))
    return {name: tuple(sorted(points, key=lambda point: point.x)) for name, points in found.items()}


def over_places(results: Results) -> dict[str, Interval]:
    """Where arms are points of curves: the difference between two curves, of each seed the mean over their places."""
    found: dict[str, list[Mapping[int, float]]] = {}
    places = results.study.places
    for arm in results.arms:
        if arm.against is not None and places:
            found.setdefault(f"{places[arm.name][0]} - {places[arm.against][0]}", []).append(arm.differences)
    return {
        pair: over_runs([math.fsum(each[seed] for each in differences) / len(differences) for seed in results.seeds])
        for pair, differences in found.items()
    }


def _record(run: Path, stage: str) -> StageRecord:
    record = RunFolder.open(run).done(stage)
    if record is None:
        raise StepladderError(f"the stage '{stage}' of the run {run} is not done: the study's command goes on with it")
    return record


def _f1(record: StageRecord) -> float:
    return float(record.summary["f1"]["mean"])


def _dev_curve(path: Path) -> dict[int, float]:
    return {row["step"]: row["dev_f1"] for row in read_metrics(path) if "dev_f1" in row}


def _steps(curves: Sequence[Mapping[int, float]]) -> list[int]:
    return sorted({step for curve in curves for step in curve})
