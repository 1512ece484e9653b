"""Steps of a search tree about which the search, the reward model and the gold judge disagree.

In: a tree, the gold judge's verdicts, and PRM scores where there are any. Out: the ids of the nodes.

A step is *disputed* if its value Q contradicts another judgement of its siblings: the gold judge calls it faulty and a
sibling with a lower Q good; or, of two siblings, it has the higher Q and the lower PRM score. The *PRM is against gold*
at a step that the gold judge calls faulty and the PRM scores above 0.5, or good and below 0.5. Values that differ by
less than `MARGIN` do not disagree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from stepladder.core.trace import Node, Tree
from stepladder.oracle.step_verdicts import Verdict

#: The smallest difference of two values, or of a PRM score from 0.5, that counts.
MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Disputes:
    """Ids of nodes."""

    #: Their value contradicts another judgement of siblings.
    values: frozenset[int]
    #: The PRM contradicts the gold judge.
    prm: frozenset[int]


def disputes_of(tree: Tree, verdicts: Sequence[Verdict | None], prm: Mapping[int, float]) -> Disputes:
    """The disputed nodes. `verdicts`: by node id; `prm`: scores from 0 to 1 by node id."""

    def overrated(node: Node, sibling: Node) -> bool:
        if node.value - sibling.value < MARGIN:
            return False
        one, other = verdicts[node.id], verdicts[sibling.id]
        if one is not None and other is not None and one.faulty and other.good:
            return True
        return node.id in prm and sibling.id in prm and prm[sibling.id] - prm[node.id] >= MARGIN

    values = {
        node.id
        for family in tree.children_by_node()
        for node, sibling in permutations([each for each in family if each.visits], 2)
        if overrated(node, sibling)
    }
    against = {node for node, score in prm.items() if _is_against(verdicts[node], score)}
    return Disputes(frozenset(values), frozenset(against))


def _is_against(verdict: Verdict | None, score: float) -> bool:
    """Whether a PRM score contradicts a verdict."""
    if verdict is None:
        return False
    return (verdict.faulty and score >= 0.5 + MARGIN) or (verdict.good and score <= 0.5 - MARGIN)
