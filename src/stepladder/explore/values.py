"""Values of the states of a search tree, from the outcomes of the episodes through them. Pure functions of a tree.

    monte_carlo   the mean outcome of all simulations through a node
    spre          shortest-path reward: outcomes decayed by path length, visit-weighted upwards (ReasonRAG)
    discounted    the mean outcome, discounted by the steps from the node to the end (ProRAG's backups)

In: a `Tree`. Out: one value per node id; None for nodes without an outcome. The value of a terminal node is its reward,
visited or not; that of another node without children is the mean of its rollouts.
"""

from collections.abc import Callable, Sequence
from functools import partial

from stepladder.core.trace import Node, Tree

#: One value per node; None if unknown.
Values = Sequence[float | None]
#: (reward of an end, steps from the root to it, steps from the node to it) -> its value for the node.
OutcomeValue = Callable[[float, int, int], float]


def monte_carlo(tree: Tree) -> list[float | None]:
    """The mean outcome of the simulations through each node."""
    return mean_value(tree, lambda reward, length, distance: reward)  # noqa: ARG005


def discounted(tree: Tree, gamma: float, decay: float = 1.0) -> list[float | None]:
    """The mean outcome through each node, discounted by the steps to the end; `decay` discounts from the root.

    For a tree whose leaves were evaluated by rollouts this is exactly the Q of its search.
    """
    return mean_value(tree, partial(_discount, gamma, decay))


def spre(tree: Tree, decay: float = 0.9) -> list[float | None]:
    """Shortest-path reward estimates: short paths to a right answer get higher values.

    The value of a leaf is its outcome times decay to the power of its steps; that of any other node the mean of its
    children, weighted by visits.
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


def mean_value(tree: Tree, value_of: OutcomeValue) -> list[float | None]:
    """The mean value of the ends of all simulations through each node."""
    depths = depths_of(tree)
    sums, counts = [0.0] * len(tree.nodes), [0] * len(tree.nodes)
    for node in tree.nodes:
        for reward, steps, times in _ends(node):
            length = depths[node.id] + steps
            for ancestor in tree.branch(node):
                sums[ancestor.id] += times * value_of(reward, length, length - depths[ancestor.id])
                counts[ancestor.id] += times
    values = [total / count if count else None for total, count in zip(sums, counts)]
    for node in tree.nodes:
        if values[node.id] is None and node.reward is not None:
            values[node.id] = value_of(node.reward, depths[node.id], 0)
    return values


def depths_of(tree: Tree) -> list[int]:
    """The depth of every node."""
    depths: list[int] = []
    for node in tree.nodes:
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
    return depths


def _ends(node: Node) -> list[tuple[float, int, int]]:
    """The ends of simulations at this node or in its rollouts: reward, steps beyond the node, count."""
    ends = [(rollout.reward, rollout.steps, 1) for rollout in node.rollouts]
    if node.reward is not None:  # it may have had rollouts before it turned out to be terminal
        ends.append((node.reward, 0, node.visits - len(node.rollouts)))
    return ends


def _discount(gamma: float, decay: float, reward: float, length: int, distance: int) -> float:
    return float(reward * decay**length * gamma**distance)
