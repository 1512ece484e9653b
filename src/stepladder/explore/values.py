"""What every state of a search tree is worth, from how the episodes through it ended. Pure functions of a tree.

    monte_carlo   the mean outcome of all simulations through a node
    spre          shortest-path reward: outcomes decayed by the length of the way, visit-weighted upwards (ReasonRAG)
    discounted    the mean outcome, discounted by the steps from the node to the end (ProRAG's backups)

In: a `Tree`. Out: one value a node, by its id; None where nothing is known of a node. An end is worth what it earned,
visited or not; any other node without children is worth what its roll-outs earned.
"""

from collections.abc import Callable, Sequence
from functools import partial

from stepladder.core.trace import Node, Tree

#: One value a node; None where nothing is known.
Values = Sequence[float | None]
#: (reward at an end, steps from the root to it, steps from the node to it) -> what the node gets of it.
Worth = Callable[[float, int, int], float]


def monte_carlo(tree: Tree) -> list[float | None]:
    """The mean outcome of the simulations through each node."""
    return mean_worth(tree, lambda reward, length, distance: reward)  # noqa: ARG005


def discounted(tree: Tree, gamma: float, decay: float = 1.0) -> list[float | None]:
    """The mean outcome through each node, less the further away its end is; `decay` counts from the root instead.

    For a tree whose leaves were valued by roll-outs this is exactly the Q that its search worked with.
    """
    return mean_worth(tree, partial(_discount, gamma, decay))


def spre(tree: Tree, decay: float = 0.9) -> list[float | None]:
    """Shortest-path reward estimates: short ways to a right answer win.

    A leaf gets its outcome times decay to the power of the steps it took; any other node the mean of its children,
    weighted by their visits.
    """
    depths, children_by_node = depths_of(tree), tree.children_by_node()
    values: list[float | None] = [None] * len(tree.nodes)
    for node in reversed(tree.nodes):
        depth = depths[node.id]
        if node.reward is not None:
            values[node.id] = node.reward * decay**depth
            continue
        known = [(child.visits, values[child.id]) for child in children_by_node[node.id]]
        weighted = [(visits, value) for visits, value in known if visits and value is not None]
        if not weighted:
            weighted = [(1, rollout.reward * decay ** (depth + rollout.steps)) for rollout in node.rollouts]
        if weighted:
            values[node.id] = sum(visits * value for visits, value in weighted) / sum(visits for visits, _ in weighted)
    return values


def mean_worth(tree: Tree, worth: Worth) -> list[float | None]:
    """The mean, over the simulations through each node, of what their ends are worth to it."""
    depths = depths_of(tree)
    sums, counts = [0.0] * len(tree.nodes), [0] * len(tree.nodes)
    for node in tree.nodes:
        for reward, steps, times in _ends(node):
            length = depths[node.id] + steps
            for above in tree.branch(node):
                sums[above.id] += times * worth(reward, length, length - depths[above.id])
                counts[above.id] += times
    values = [total / count if count else None for total, count in zip(sums, counts)]
    for node in tree.nodes:
        if values[node.id] is None and node.reward is not None:
            values[node.id] = worth(node.reward, depths[node.id], 0)
    return values


def depths_of(tree: Tree) -> list[int]:
    """Steps from the root to every node."""
    depths: list[int] = []
    for node in tree.nodes:
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
    return depths


def _ends(node: Node) -> list[tuple[float, int, int]]:
    """The ends that simulations reached at or from this very node: reward, steps beyond the node, how many times."""
    ends = [(rollout.reward, rollout.steps, 1) for rollout in node.rollouts]
    if node.reward is not None:  # one that turned out to be an end later may have been played on from before
        ends.append((node.reward, 0, node.visits - len(node.rollouts)))
    return ends


def _discount(gamma: float, decay: float, reward: float, length: int, distance: int) -> float:
    return float(reward * decay**length * gamma**distance)
