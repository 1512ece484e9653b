"""A judge by value: of two siblings, the one that is worth more, where the difference is worth learning.

In: a tree, and a function that gives every node a value or None (see `explore/values.py`: Monte-Carlo means, shortest
paths). Out: a preference for every pair of siblings whose values differ by at least the margin, the clearest first.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

from stepladder.core.requests import Algorithm
from stepladder.core.trace import Node, Tree
from stepladder.judges.base import Preference


class ValueJudge:
    """Prefers the sibling of greater value. Asks no model."""

    def __init__(self, name: str, values: Callable[[Tree], Sequence[float | None]], margin: float = 0.01) -> None:
        """`values` gives one value a node, by id, None where nothing is known; `margin` is the least difference."""
        if margin <= 0:
            raise ValueError(f"margin is {margin}; it must be above 0, or equal steps would be preferred to each other")
        self.name = name
        self.values = values
        self.margin = margin
        #: The last tree and its values: one tree is asked about once for every family of siblings.
        self._last: tuple[Tree, Sequence[float | None]] | None = None

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """Every pair whose values differ by the margin or more, the greatest difference first."""
        yield from ()
        values = self._values_of(tree)
        valued = [(value, node.id) for node in siblings if (value := values[node.id]) is not None]
        ordered = sorted(valued, key=lambda pair: (-pair[0], pair[1]))
        preferences = [
            Preference(better, worse, high, low, f"{self.name} {high:.3g} against {low:.3g}")
            for (high, better), (low, worse) in combinations(ordered, 2)
            if high - low >= self.margin
        ]
        return sorted(preferences, key=_difference, reverse=True)

    def _values_of(self, tree: Tree) -> Sequence[float | None]:
        if self._last is None or self._last[0] is not tree:
            self._last = tree, self.values(tree)
        return self._last[1]


def _difference(preference: Preference) -> float:
    return (preference.chosen_value or 0.0) - (preference.rejected_value or 0.0)
