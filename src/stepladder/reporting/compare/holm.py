"""Holm's step-down correction for multiple tests.

In: p-values. Out: corrected p-values. Rejecting those below 0.05 keeps the family-wise error rate below 0.05, whatever
the dependence between the tests.
"""

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """The smallest of m p-values is multiplied by m, the next by m - 1, and so on; the result is made monotone.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min((len(p_values) - rank) * p_values[index], 1.0))
        corrected[index] = highest
    return corrected
