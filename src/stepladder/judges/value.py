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
from stepladder.judges.base import JudgeSpec, Preference, once_per_tree


class ValueJudge:
    """Prefers the sibling with the higher value. Calls no model."""

    def __init__(self, name: str, values: Callable[[Tree], Sequence[float | None]], margin: float = 0.01) -> None:
        """`values` gives one value per node id, None if unknown; `margin` is the minimum difference, above 0."""
        self.name = name
        self.values = once_per_tree(values)
        self.margin = margin

    def prefer(self, tree: Tree, siblings: Sequence[Node]) -> Algorithm[list[Preference]]:
        """Every pair whose values differ by the margin or more, the largest difference first."""
        yield from ()
        values = self.values(tree)
        valued = [(value, node.id) for node in siblings if (value := values[node.id]) is not None]
        ordered = sorted(valued, key=lambda pair: (-pair[0], pair[1]))
        pairs = [(high[0] - low[0], high, low) for high, low in combinations(ordered, 2)]
        return [
            Preference(better, worse, high, low, f"{self.name} {high:.3g} against {low:.3g}")
            for difference, (high, better), (low, worse) in sorted(pairs, key=lambda pair: -pair[0])
            if difference >= self.margin
        ]


JUDGES = {
    "spre": JudgeSpec(
        lambda options: ValueJudge("spre", lambda tree: spre(tree, options.decay), options.margin),
        "shortest-path reward estimates: outcomes decayed by the length of the path (ReasonRAG)",
    ),
    "mc": JudgeSpec(
        lambda options: ValueJudge("mc", monte_carlo, options.margin), "Monte Carlo mean of the outcomes below a node"
    ),
    "q": JudgeSpec(
        lambda options: ValueJudge(
            "q", lambda tree: [node.value if node.visits else None for node in tree.nodes], options.margin
        ),
        "the search's own value",
    ),
    "rank": JudgeSpec(
        lambda options: ValueJudge("rank", lambda tree: [node.scores.get(RANK) for node in tree.nodes], options.margin),
        "the score that ranked the actions in the stage `rank`",
        advice="It needs trees of a stage `rank` with different actions: raise its n or temperature",
    ),
}
