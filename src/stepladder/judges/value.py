"""Judges that compare siblings by value: Monte Carlo means, SPRE, the search's own values, or the ranks of `rank`.

In: a tree, and a function that gives every node a value or None (`explore/values.py`). Out: a preference for every pair
of siblings whose values differ by at least the margin, the clearest first.
"""

from collections.abc import Callable, Sequence
from itertools import combinations

from stepladder.core.requests import Algorithm
from stepladder.core.trace import Node, Tree
from stepladder.explore.ranked import RANK
from stepladder.explore.values import monte_carlo, spre
from stepladder.judges.base import JudgeSpec, Preference


class ValueJudge:
    """Prefers the sibling with the higher value. Calls no model."""

    def __init__(self, name: str, values: Callable[[Tree], Sequence[float | None]], margin: float = 0.01) -> None:
        """`values` gives one value per node id, None if unknown; `margin` is the minimum difference."""
        if margin <= 0:
            raise ValueError(f"margin is {margin}; it must be above 0, or steps of equal value would become pairs")
        self.name = name
        self.values = values
        self.margin = margin
        #: The last tree and its values: `prefer` is called once per group of siblings of a tree.
        self._last: tuple[Tree, Sequence[float | None]] | None = None

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """Every pair whose values differ by the margin or more, the largest difference first."""
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


def _search_values(tree: Tree) -> list[float | None]:
    return [node.value if node.visits else None for node in tree.nodes]


def _ranks(tree: Tree) -> list[float | None]:
    return [node.scores.get(RANK) for node in tree.nodes]


def _difference(preference: Preference) -> float:
    return (preference.chosen_value or 0.0) - (preference.rejected_value or 0.0)


JUDGES = {
    "spre": JudgeSpec(
        lambda options: ValueJudge("spre", lambda tree: spre(tree, options.decay), options.margin),
        "shortest-path reward estimates: outcomes decayed by the length of the path (ReasonRAG)",
    ),
    "mc": JudgeSpec(
        lambda options: ValueJudge("mc", monte_carlo, options.margin), "Monte Carlo mean of the outcomes below a node"
    ),
    "q": JudgeSpec(lambda options: ValueJudge("q", _search_values, options.margin), "the search's own value"),
    "rank": JudgeSpec(
        lambda options: ValueJudge("rank", _ranks, options.margin),
        "the score that ranked the actions in the stage `rank`",
        advice="It needs trees of a stage `rank` with different actions: raise its n or temperature",
    ),
}
