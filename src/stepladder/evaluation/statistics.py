"""Confidence intervals of means and of differences between two systems, from scores per question.

In: one number per question. Out: a 95% bootstrap interval of the mean and, for two systems on the same questions, the
interval of their difference with the p-value of a sign-flip test. Pure numpy, seeded: equal input, equal output.

Neither method assumes a distribution. Both see only the given questions: a constant score gives an interval of zero
width, which means that the sample shows no variation, not that there is none.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
LEVEL = 0.95
#: With at most this many differing questions all 2^n sign patterns are enumerated.
EXACT_UP_TO = 16
#: Numbers drawn at a time, to bound the memory.
CHUNK = 1 << 20

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the bounds between which 95% of its bootstrap resamples lie."""

    mean: float
    low: float
    high: float


def interval_text(interval: Interval, digits: int = 3) -> str:
    """A mean with its interval.

    >>> interval_text(Interval(0.5, 0.4, 0.6))
    '0.500 [0.400, 0.600]'
    """
    return f"{interval.mean:,.{digits}f} [{interval.low:,.{digits}f}, {interval.high:,.{digits}f}]"


def signed_text(change: Interval) -> str:
    """A difference with its interval; large numbers without decimals.

    >>> signed_text(Interval(0.1, -0.05, 0.25))
    '+0.100 [-0.050, +0.250]'
    """
    digits = 0 if max(map(abs, (change.low, change.high))) >= 100 else 3
    return f"{change.mean:+,.{digits}f} [{change.low:+,.{digits}f}, {change.high:+,.{digits}f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first system minus the second, on the same questions."""

    #: Questions that were compared.
    questions: int
    difference: Interval
    #: Probability of a difference at least this large, in either direction, if the systems were interchangeable.
    p_value: float


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """The mean with its percentile bootstrap interval.

    >>> mean_interval([1.0, 1.0, 1.0])
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    return _bootstrap(_checked(values, "values"), seed)


def paired_difference(a: Sequence[float], b: Sequence[float], *, seed: int = 0) -> Comparison:
    """Compare two systems by their scores on the same questions; `a[i]` and `b[i]` belong to the same question.

    The null hypothesis of the test: the two scores of a question are exchangeable, so each sign of a difference is as
    likely as its opposite. Questions with equal scores have no sign to flip.

    >>> paired_difference([1, 1, 1, 0], [0, 0, 0, 0]).p_value  # 2 of the 8 sign patterns reach 3
    0.25
    """
    if len(a) != len(b):
        raise ValueError(f"paired scores must belong to the same questions, found {len(a)} and {len(b)} scores")
    differences = _checked(a, "a") - _checked(b, "b")
    return Comparison(len(differences), _bootstrap(differences, seed), _sign_flip(differences[differences != 0], seed))


def pooled_share(wins: Sequence[float], tries: Sequence[int], *, seed: int = 0) -> Interval | None:
    """The share of wins among all tries, with an interval that resamples groups of tries, such as questions.

    `wins[i]` of `tries[i]` belong to one group. None if there are no tries.

    >>> pooled_share([3, 1], [3, 1])
    Interval(mean=1.0, low=1.0, high=1.0)
    """
    counts_Q2 = np.stack([np.asarray(wins, dtype=np.float64), np.asarray(tries, dtype=np.float64)], axis=1)
    total = counts_Q2[:, 1].sum()
    if not total:
        return None
    generator, n = np.random.default_rng(seed), len(counts_Q2)
    sums_R2 = np.stack([counts_Q2[generator.integers(n, size=n)].sum(axis=0) for _ in range(1_000)])
    tried = sums_R2[sums_R2[:, 1] > 0]
    low, high = np.quantile(tried[:, 0] / tried[:, 1], ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(float(counts_Q2[:, 0].sum() / total), float(low), float(high))


def _bootstrap(values: Values, seed: int) -> Interval:
    # The mean of equal numbers can have a rounding error; constants need no resampling.
    if values.min() == values.max():
        return Interval(*[float(values[0])] * 3)
    n, generator = len(values), np.random.default_rng(seed)
    means = in_chunks(RESAMPLES, n, lambda rows: values[generator.integers(n, size=(rows, n))].mean(axis=1))
    low, high = np.quantile(means, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return Interval(float(values.mean()), float(low), float(high))


def _sign_flip(differences: Values, seed: int) -> float:
    n = len(differences)
    if n == 0:
        return 1.0
    # Mathematically equal sums can differ by rounding, so there is a small tolerance.
    observed = abs(differences.sum()) - 1e-9 * np.abs(differences).sum()
    if n <= EXACT_UP_TO:
        patterns = np.arange(1 << n)[:, None] >> np.arange(n) & 1
        return float((np.abs((2.0 * patterns - 1) @ differences) >= observed).mean())
    generator = np.random.default_rng(seed)
    sums = in_chunks(
        RESAMPLES, n, lambda rows: (2.0 * generator.integers(2, size=(rows, n), dtype=np.int8) - 1) @ differences
    )
    # The observed pattern counts as well, which keeps p above 0 (Phipson and Smyth, 2010).
    return float((1 + np.count_nonzero(np.abs(sums) >= observed)) / (1 + RESAMPLES))


def in_chunks(total: int, n: int, draw: Callable[[int], Values]) -> Values:
    """The results of `draw(rows)` for `total` rows of n numbers, in chunks of bounded size."""
    rows = max(1, CHUNK // n)
    return np.concatenate([draw(min(rows, total - start)) for start in range(0, total, rows)])


def _checked(values: Sequence[float], name: str) -> Values:
    if len(values) == 0:
        raise ValueError(f"{name} is empty; a mean needs at least one value")
    numbers = np.asarray(values, dtype=np.float64)  # None (unknown) becomes NaN
    for position in np.flatnonzero(~np.isfinite(numbers)).tolist():
        raise ValueError(f"{name}[{position}] is {values[position]}; leave out questions without a known value")
    return numbers
