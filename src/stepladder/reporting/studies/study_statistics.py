"""Statistics of a study: intervals over seeds, paired tests, Holm's correction, power.

In: one number per seed. Out: plain numbers. A difference is paired by seed and tested by Student's t, two-sided, which
assumes that the differences are roughly normal. Power is exact, by the noncentral t distribution.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from stepladder.evaluation.statistics import LEVEL, Interval

#: With fewer seeds nothing is said about a method: an interval from two runs is a guess.
MIN_SEEDS = 5
ALPHA, POWER = 0.05, 0.8
#: More seeds than this are not planned.
_MOST_SEEDS = 100_000


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean over seeds with a Student's t interval; for one value the interval is the value itself.

    >>> t_interval([0.5, 0.5, 0.5])
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    from scipy import stats  # slow to import

    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean, mean, mean)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    reach = error * float(stats.t.ppf((1 + level) / 2, len(values) - 1))
    return Interval(mean, mean - reach, mean + reach)


def spread(differences: Sequence[float]) -> Interval:
    """The standard deviation of differences, with its 95% interval by the chi-squared distribution."""
    from scipy import stats  # slow to import

    freedom = len(differences) - 1
    deviation = float(np.std(differences, ddof=1))
    low, high = (
        deviation * math.sqrt(freedom / float(stats.chi2.ppf(share, freedom)))
        for share in ((1 + LEVEL) / 2, (1 - LEVEL) / 2)
    )
    return Interval(deviation, low, high)


def paired_p(differences: Sequence[float]) -> float:
    """The two-sided p-value of the paired t test.

    >>> paired_p([0.0, 0.0, 0.0])
    1.0
    """
    from scipy import stats  # slow to import

    mean, error = float(np.mean(differences)), float(np.std(differences, ddof=1)) / math.sqrt(len(differences))
    if error < 1e-12:  # rounding
        return 1.0 if abs(mean) < 1e-12 else 0.0
    return float(2 * stats.t.sf(abs(mean) / error, len(differences) - 1))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values: the smallest times their number, the next times one less, never decreasing.

    >>> holm({"a": 0.04, "b": 0.01, "c": 0.03})
    {'a': 0.06, 'b': 0.03, 'c': 0.06}
    """
    adjusted, highest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        highest = max(highest, min((len(p_values) - rank) * p_values[name], 1.0))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def power(seeds: int, effect: float, deviation: float, alpha: float = ALPHA) -> float:
    """The power of the two-sided paired t test to find an effect, given the SD of the differences."""
    from scipy import stats  # slow to import

    if seeds < 2:
        return 0.0
    freedom, shift = seeds - 1, effect / deviation * math.sqrt(seeds)
    limit = float(stats.t.ppf(1 - alpha / 2, freedom))
    above, below = float(stats.nct.sf(limit, freedom, shift)), float(stats.nct.cdf(-limit, freedom, shift))
    # Far in a tail scipy may give nan: there is nothing to add, and nothing is missing.
    return min((1.0 if math.isnan(above) else above) + (0.0 if math.isnan(below) else below), 1.0)


def seeds_needed(effect: float, deviation: float, alpha: float = ALPHA, wanted: float = POWER) -> int:
    """The fewest seeds with this power, `MIN_SEEDS` or more."""
    low, high = MIN_SEEDS - 1, MIN_SEEDS
    while power(high, effect, deviation, alpha) < wanted:
        if high > _MOST_SEEDS:
            return high
        low, high = high, high * 2
    while high - low > 1:  # power grows with the seeds
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, effect, deviation, alpha) >= wanted else (middle, high)
    return high
