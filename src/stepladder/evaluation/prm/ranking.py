"""Ranking and calibration metrics of step scores.

In: one score per step, such as a reward model's logit, and whether the step is good. Out: the area under the ROC curve
(AUC) with a 95% interval, bins of a reliability diagram, calibration error, Brier score, and Platt scaling. Pure numpy,
seeded: equal input, equal output.

Steps of one question are correlated, so the interval resamples questions, never single steps.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepladder.core.errors import StepladderError
from stepladder.evaluation.statistics import LEVEL, RESAMPLES, Interval, Values, in_chunks

Labels = NDArray[np.bool_]
#: Newton's method needs about ten iterations, more with halved steps.
_NEWTON_STEPS = 50


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """The probability that a random good step scores higher than a random faulty one; a tie counts half.

    >>> auc([2.0, 1.0, 1.0, -1.0], [True, True, False, False])  # 3 of 4 comparisons are won, 1 is a tie
    0.875
    """
    values, good = _checked(scores, labels)
    ranked = _Ranked(values, good, np.zeros(len(good), dtype=np.intp))
    return float(ranked.areas(np.ones((1, 1)))[0])


def auc_interval(
    scores: Sequence[float], labels: Sequence[bool], groups: Sequence[Hashable], *, seed: int = 0
) -> Interval:
    """The AUC with its percentile bootstrap interval. `groups`: the question of every step; questions are resampled.

    Resamples in which all steps are good, or all faulty, have no AUC and are left out. They are rare unless nearly all
    good or faulty steps belong to one question.
    """
    values, good = _checked(scores, labels)
    if len(groups) != len(good):
        raise ValueError(f"every step needs a group, found {len(good)} steps and {len(groups)} groups")
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    ranked = _Ranked(values, good, np.array([numbers[group] for group in groups]))
    n, generator = len(numbers), np.random.default_rng(seed)

    def draw(rows: int) -> Values:
        chosen = generator.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        times = np.bincount(chosen.ravel(), minlength=rows * n).reshape(rows, n)
        return ranked.areas(times.astype(np.float64))

    areas = in_chunks(RESAMPLES, len(good), draw)
    low, high = np.nanquantile(areas, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(float(ranked.areas(np.ones((1, n)))[0]), float(low), float(high))


class _Ranked:
    """Steps sorted by score, to be weighted by how often their groups were drawn."""

    def __init__(self, scores: Values, good: Labels, groups: NDArray[np.intp]) -> None:
        if good.all() or not good.any():
            raise StepladderError(
                f"all {len(good)} steps are {'good' if good.all() else 'faulty'}: an AUC compares good steps with "
                "faulty ones. Score more, or more varied, trajectories."
            )
        order = np.argsort(scores, kind="stable")
        self.good = good[order].astype(np.float64)
        self.groups = groups[order]
        #: The start of each run of equal scores.
        self.starts = np.flatnonzero(np.append(True, scores[order][1:] != scores[order][:-1]))

    def areas(self, times: Values) -> Values:
        """One AUC per row, with group g counted `times[row, g]` times; NaN if a row has only good or faulty steps."""
        weights = times[:, self.groups]
        good = np.add.reduceat(weights * self.good, self.starts, axis=1)
        faulty = np.add.reduceat(weights * (1 - self.good), self.starts, axis=1)
        won = (good * (np.cumsum(faulty, axis=1) - faulty / 2)).sum(axis=1)
        pairs = good.sum(axis=1) * faulty.sum(axis=1)
        areas: Values = np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
        return areas


# --- scores as probabilities


def as_probabilities(scores: Sequence[float], scale: float = 1.0, offset: float = 0.0) -> list[float]:
    """The predicted probability of a good step for each score: sigmoid(scale * score + offset).

    >>> as_probabilities([0.0, -1000.0, 1000.0])
    [0.5, 0.0, 1.0]
    """
    probabilities: list[float] = _sigmoid(scale * np.asarray(scores, dtype=np.float64) + offset).tolist()
    return probabilities


@dataclass(frozen=True, slots=True)
class Bin:
    """The steps whose predicted probability lies between `low` and `high`."""

    low: float
    high: float
    count: int
    #: Mean predicted probability.
    probability: float
    #: Share of good steps.
    good: float


def reliability(probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10) -> tuple[Bin, ...]:
    """The steps in bins of equal width by predicted probability, in order. Empty bins are left out.

    >>> reliability([0.1, 0.3], [False, True], bins=2)
    (Bin(low=0.0, high=0.5, count=2, probability=0.2, good=0.5),)
    """
    if bins < 1:
        raise ValueError(f"bins is {bins}; at least 1 is needed")
    predicted, good = _checked_probabilities(probabilities, labels)
    edges = np.arange(bins + 1) / bins
    bin_of = np.digitize(predicted, edges[1:-1])
    return tuple(
        Bin(
            float(edges[number]),
            float(edges[number + 1]),
            int(inside.sum()),
            float(predicted[inside].mean()),
            float(good[inside].mean()),
        )
        for number in range(bins)
        if (inside := bin_of == number).any()
    )


def calibration_error(probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10) -> float:
    """The expected calibration error (ECE): |predicted - true share|, averaged over bins weighted by their steps."""
    found = reliability(probabilities, labels, bins)
    return sum(each.count * abs(each.probability - each.good) for each in found) / len(labels)


def brier(probabilities: Sequence[float], labels: Sequence[bool]) -> float:
    """The Brier score: the mean squared error of the probabilities.

    >>> brier([0.5, 1.0], [True, True])
    0.125
    """
    predicted, good = _checked_probabilities(probabilities, labels)
    return float(((predicted - good) ** 2).mean())


def platt(scores: Sequence[float], labels: Sequence[bool]) -> tuple[float, float]:
    """The (scale, offset) for which sigmoid(scale * score + offset) predicts the labels best (Platt, 1999).

    One-dimensional logistic regression by Newton's method. As in the paper the targets are slightly below 1 and above
    0, so that separable classes do not make the scale infinite. Fit it on other questions than those it is applied to.
    """
    values, good = _checked(scores, labels)
    positive, negative = int(good.sum()), int((~good).sum())
    target = np.where(good, (positive + 1) / (positive + 2), 1 / (negative + 2))
    # Standardized scores make the Newton steps independent of the scale of the scores.
    center, spread = float(values.mean()), float(values.std()) or 1.0
    inputs = np.stack([(values - center) / spread, np.ones(len(values))], axis=1)
    weights = np.array([0.0, np.log((positive + 1) / (negative + 1))])
    for _ in range(_NEWTON_STEPS):
        predicted = _sigmoid(inputs @ weights)
        gradient = inputs.T @ (predicted - target)
        curvature = (inputs.T * (predicted * (1 - predicted))) @ inputs + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        # A full step may overshoot; the loss is convex, so a smaller one always reduces it.
        now, size = _cross_entropy(inputs @ weights, target), 1.0
        while size > 1e-6 and _cross_entropy(inputs @ (weights - size * step), target) > now:
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-10:
            break
    scale = float(weights[0]) / spread
    return scale, float(weights[1]) - scale * center


def _cross_entropy(logits: Values, target: Values) -> float:
    return float((np.logaddexp(0.0, logits) - target * logits).sum())


def _sigmoid(logits: Values) -> Values:
    return (1 + np.tanh(logits / 2)) / 2  # exp would overflow


def _checked(scores: Sequence[float], labels: Sequence[bool]) -> tuple[Values, Labels]:
    if len(scores) != len(labels):
        raise ValueError(f"every step needs a score and a label, found {len(scores)} and {len(labels)}")
    if len(scores) == 0:
        raise ValueError("no steps; at least one is needed")
    values, good = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    for position in np.flatnonzero(~np.isfinite(values)).tolist():
        raise ValueError(f"scores[{position}] is {scores[position]}; a score must be a finite number")
    for position in np.flatnonzero((good != 0) & (good != 1)).tolist():
        raise ValueError(f"labels[{position}] is {labels[position]}; leave out steps without a verdict")
    return values, good.astype(np.bool_)


def _checked_probabilities(probabilities: Sequence[float], labels: Sequence[bool]) -> tuple[Values, Labels]:
    predicted, good = _checked(probabilities, labels)
    for position in np.flatnonzero((predicted < 0) | (predicted > 1)).tolist():
        raise ValueError(f"probabilities[{position}] is {probabilities[position]}; it must be between 0 and 1")
    return predicted, good
