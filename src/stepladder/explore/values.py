"""Values of the states of a search tree, from the outcomes of the episodes through them. Pure functions of a tree.

    monte_carlo   the mean outcome of all simulations through a node
    spre          shortest-path reward: outcomes decayed by path length, visit-weighted upwards (ReasonRAG)

In: a `Tree`. Out: one value per node id; None for nodes without an outcome. The value of a terminal node is its reward,
visited or not; that of another node without children is the mean of its rollouts.
"""

from stepladder.core.trace import Tree


def monte_carlo(tree: Tree) -> list[float | None]:
    """The mean outcome of the simulations through each node."""
    sums, counts = [0.0] * len(tree.nodes), [0] * len(tree.nodes)
    for node in tree.nodes:
        ends = [(rollout.reward, 1) for rollout in node.rollouts]
        if node.reward is not None:  # it may have had rollouts before it turned out to be terminal
            ends.append((node.reward, node.visits - len(node.rollouts)))
        for reward, times in ends:
            for ancestor in tree.branch(node):
                sums[ancestor.id] += times * reward
                counts[ancestor.id] += times
    return [total / count if count else node.reward for node, total, count in zip(tree.nodes, sums, counts)]


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


def depths_of(tree: Tree) -> list[int]:
    """The depth of every node."""
    depths: list[int] = []
    for node in tree.nodes:
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
    return depths
