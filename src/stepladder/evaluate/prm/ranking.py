"""How well scores of steps tell good steps from faulty ones, and how far they can be read as probabilities.

In: one score a step, such as a reward model's logit, and whether the step is good. Out: the area under the ROC curve
with a 95% interval, bins of a reliability diagram, calibration error, Brier score, and the Platt scaling that would
repair the probabilities. Pure numpy, seeded: equal input, equal output.

Steps of one question are alike, so the interval resamples questions, never single steps.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepladder.core.errors import StepladderError
from stepladder.evaluate.statistics import CHUNK, LEVEL, RESAMPLES, Interval, Values

Labels = NDArray[np.bool_]
#: Newton's method needs about ten; halved steps may need a few more.
_NEWTON_STEPS = 50


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """The probability that a good step is scored above a faulty one, both drawn at random; a tie counts half.

    >>> auc([2.0, 1.0, 1.0, -1.0], [True, True, False, False])  # of the 4 comparisons 3 are won, and 1 is a tie
    0.875
    """
    values, good = _checked(scores, labels)
    ranked = _Ranked(values, good, np.zeros(len(good), dtype=np.intp))
    return float(ranked.areas(np.ones((1, 1)))[0])


def auc_interval(
    scores: Sequence[float], labels: Sequence[bool], groups: Sequence[Hashable], *, seed: int = 0
) -> Interval:
    """The AUC with its percentile bootstrap interval. `groups` has the question of every step: these are resampled.

    A resample in which all steps are good, or all faulty, has no AUC. Such resamples are left out; they are rare
    unless next to all good or faulty steps belong to one question.
    """
    values, good = _checked(scores, labels)
    if len(groups) != len(good):
        raise ValueError(f"every step needs its group, but there are {len(good)} steps and {len(groups)} groups")
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    ranked = _Ranked(values, good, np.array([numbers[group] for group in groups]))
    n, generator = len(numbers), np.random.default_rng(seed)

    def draw(rows: int) -> Values:
        chosen = generator.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        times = np.bincount(chosen.ravel(), minlength=rows * n).reshape(rows, n)
        return ranked.areas(times.astype(np.float64))

    rows = max(1, CHUNK // len(good))
    areas = np.concatenate([draw(min(rows, RESAMPLES - start)) for start in range(0, RESAMPLES, rows)])
    low, high = np.nanquantile(areas, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(float(ranked.areas(np.ones((1, n)))[0]), float(low), float(high))


class _Ranked:
    """Steps in the order of their scores, ready to be weighted by how often their groups were drawn."""

    def __init__(self, scores: Values, good: Labels, groups: NDArray[np.intp]) -> None:
        if good.all() or not good.any():
            raise StepladderError(
                f"all {len(good)} steps are {'good' if good.all() else 'faulty'}: an AUC compares good steps with "
                "faulty ones. Score more trajectories, or such that are not all alike."
            )
        order = np.argsort(scores, kind="stable")
        self.good = good[order].astype(np.float64)
        self.groups = groups[order]
        #: Where each run of equal scores begins.
        self.starts = np.flatnonzero(np.append(True, scores[order][1:] != scores[order][:-1]))

    def areas(self, times: Values) -> Values:
        """One AUC a row, with group g counted `times[row, g]` times; NaN for a row with good or faulty steps only."""
        weights = times[:, self.groups]
        good = np.add.reduceat(weights * self.good, self.starts, axis=1)
        faulty = np.add.reduceat(weights * (1 - self.good), self.starts, axis=1)
        won = (good * (np.cumsum(faulty, axis=1) - faulty / 2)).sum(axis=1)
        pairs = good.sum(axis=1) * faulty.sum(axis=1)
        areas: Values = np.divide(won, pairs, out=np.full(len(pairs), np.nan), where=pairs > 0)
        return areas


# --- scores as probabilities


def as_probabilities(scores: Sequence[float], scale: float = 1.0, offset: float = 0.0) -> list[float]:
    """The probability of being good that each score stands for: sigmoid(scale * score + offset).

    >>> as_probabilities([0.0, -1000.0, 1000.0])
    [0.5, 0.0, 1.0]
    """
    chances: list[float] = _sigmoid(scale * np.asarray(scores, dtype=np.float64) + offset).tolist()
    return chances


@dataclass(frozen=True, slots=True)
class Bin:
    """The steps whose probability lies from `low` up to `high`: what was predicted of them, and what they were."""

    low: float
    high: float
    count: int
    #: Mean predicted probability.
    probability: float
    #: Share of good steps.
    good: float


def reliability(probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10) -> tuple[Bin, ...]:
    """The steps in bins of equal width by their probability, in order. Bins without steps are not there.

    >>> reliability([0.1, 0.3], [False, True], bins=2)
    (Bin(low=0.0, high=0.5, count=2, probability=0.2, good=0.5),)
    """
    if bins < 1:
        raise ValueError(f"bins is {bins}; at least 1 is needed")
    chances, good = _checked_chances(probabilities, labels)
    edges = np.arange(bins + 1) / bins
    place = np.digitize(chances, edges[1:-1])
    return tuple(
        Bin(
            float(edges[number]),
            float(edges[number + 1]),
            int(inside.sum()),
            float(chances[inside].mean()),
            float(good[inside].mean()),
        )
        for number in range(bins)
        if (inside := place == number).any()
    )


def calibration_error(probabilities: Sequence[float], labels: Sequence[bool], bins: int = 10) -> float:
    """The expected calibration error (ECE): how far predicted and true shares are apart, a bin counted by its steps."""
    found = reliability(probabilities, labels, bins)
    return sum(each.count * abs(each.probability - each.good) for each in found) / len(labels)


def brier(probabilities: Sequence[float], labels: Sequence[bool]) -> float:
    """The mean squared distance of the probability from the truth, 0 or 1.

    >>> brier([0.5, 1.0], [True, True])
    0.125
    """
    chances, good = _checked_chances(probabilities, labels)
    return float(((chances - good) ** 2).mean())


def platt(scores: Sequence[float], labels: Sequence[bool]) -> tuple[float, float]:
    """The (scale, offset) with which sigmoid(scale * score + offset) predicts the labels best (Platt, 1999).

    One-dimensional logistic regression by Newton's method. As in the paper the targets are a little less than 1 and
    more than 0, so that scores which separate the classes do not make the scale infinite. Fit on other questions than
    those whose calibration is to be told.
    """
    values, good = _checked(scores, labels)
    positive, negative = int(good.sum()), int((~good).sum())
    target = np.where(good, (positive + 1) / (positive + 2), 1 / (negative + 2))
    # Standardised scores make the Newton steps independent of the unit of the scores.
    centre, spread = float(values.mean()), float(values.std()) or 1.0
    inputs = np.stack([(values - centre) / spread, np.ones(len(values))], axis=1)
    weights = np.array([0.0, np.log((positive + 1) / (negative + 1))])
    for _ in range(_NEWTON_STEPS):
        predicted = _sigmoid(inputs @ weights)
        gradient = inputs.T @ (predicted - target)
        curvature = (inputs.T * (predicted * (1 - predicted))) @ inputs + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        # A full step may go too far; the loss is convex, so that a part of it always helps.
        now, size = _cross_entropy(inputs @ weights, target), 1.0
        while size > 1e-6 and _cross_entropy(inputs @ (weights - size * step), target) > now:
            size /= 2
        weights = weights - size * step
        if np.abs(size * step).max() < 1e-10:
            break
    scale = float(weights[0]) / spread
    return scale, float(weights[1]) - scale * centre


def _cross_entropy(logits: Values, target: Values) -> float:
    return float((np.logaddexp(0.0, logits) - target * logits).sum())


def _sigmoid(logits: Values) -> Values:
    return (1 + np.tanh(logits / 2)) / 2  # exp would overflow


def _checked(scores: Sequence[float], labels: Sequence[bool]) -> tuple[Values, Labels]:
    if len(scores) != len(labels):
        raise ValueError(f"every step needs a score and a label, but there are {len(scores)} and {len(labels)}")
    if len(scores) == 0:
        raise ValueError("there are no steps; at least one is needed")
    values, good = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    for position in np.flatnonzero(~np.isfinite(values)).tolist():
        raise ValueError(f"scores[{position}] is {scores[position]}; a score must be a finite number")
    for position in np.flatnonzero((good != 0) & (good != 1)).tolist():
        raise ValueError(f"labels[{position}] is {labels[position]}; leave out steps that cannot be judged")
    return values, good.astype(np.bool_)


def _checked_chances(probabilities: Sequence[float], labels: Sequence[bool]) -> tuple[Values, Labels]:
    chances, good = _checked(probabilities, labels)
    for position in np.flatnonzero((chances < 0) | (chances > 1)).tolist():
        raise ValueError(f"probabilities[{position}] is {probabilities[position]}; it must lie between 0 and 1")
    return chances, good
