"""P-values of several tests at once: the more is tried, the likelier something looks good by chance.

In: p-values. Out: the same, corrected by Holm's step-down method: where they are held against 0.05, the probability
that any of the tests finds a difference that is none stays below 0.05, however the tests depend on each other.
"""

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The smallest of m p-values is multiplied by m, the next by m - 1 ...; none becomes less than one before it.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        least = max(least, min((len(p_values) - rank) * p_values[place], 1.0))
        corrected[place] = least
    return corrected
