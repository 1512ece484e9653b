"""`tree`: the outcomes of the branches below a step (TreePS-RAG, TreeRL, Tree-GRPO).

Episodes that share their beginning are branches of a tree. A shared step has one value and is in the loss once, in the
first branch; with `branches` credit it is in the loss of each.
"""

from collections.abc import Sequence

from stepladder.core.trace import Trajectory, Tree
from stepladder.train.grpo.advantage import branch_advantages, gain_advantages
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import AdvantageEstimator, EpisodeGroup, Floats, Need, always


def branches_of(tree: Tree) -> tuple[list[Trajectory], list[list[int]]]:
    """The branches of a tree as episodes, and the ids of the nodes that their steps are."""
    leaves = [node for node in tree.nodes if node.stop is not None]
    return [tree.trajectory(leaf) for leaf in leaves], [[node.id for node in tree.branch(leaf)[1:]] for leaf in leaves]


def _tree(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    if settings.normalize_rewards == "together":
        return _credit(group, group.outcome_rewards, settings, scaled=True)
    answers = _credit(group, group.answer_rewards, settings, scaled=True)
    formats = _credit(group, group.format_rewards, settings, scaled=False)
    return [answer + settings.format_weight * kept for answer, kept in zip(answers, formats)]


def _credit(group: EpisodeGroup, rewards_G: Sequence[float], settings: GRPOConfig, *, scaled: bool) -> list[Floats]:
    """The credit of every step for one kind of reward, divided by its deviation if it is `scaled`."""
    assert group.evidence.nodes is not None
    paths = group.evidence.nodes
    if settings.tree.credit == "branches":
        stems = [path[0] for path in paths]
        return group.broadcast(branch_advantages(stems, rewards_G, settings.ddof, scaled=scaled))
    places, parents = _places(paths)
    leaves = [places[path[-1]] for path in paths]
    relative = settings.tree.credit == "steps"
    # Every episode ends in a node of its own, so that episodes may also share their last step.
    by_node = gain_advantages(
        [*parents, *leaves],
        [*[None] * len(parents), *rewards_G],
        settings.ddof,
        relative_to_root=relative,
        scaled=scaled,
    )
    return [by_node[[places[node] for node in path]] for path in paths]


def _places(paths: Sequence[Sequence[int]]) -> tuple[dict[int, int], list[int | None]]:
    """The position of every node id in a tree with the question at 0, and the parent of every position."""
    places: dict[int, int] = {}
    parents: list[int | None] = [None]
    for path in paths:
        parent = 0
        for node in path:
            if node not in places:
                places[node] = len(parents)
                parents.append(parent)
            parent = places[node]
    return places, parents


def _loss_masks(group: EpisodeGroup, settings: GRPOConfig) -> list[list[bool]]:
    assert group.evidence.nodes is not None
    once, seen = settings.tree.credit != "branches", set[int]()
    masks = []
    for path in group.evidence.nodes:
        masks.append([not (once and node in seen) for node in path])
        seen.update(path)
    return masks


TREE = AdvantageEstimator(_tree, always(Need.NODES), _loss_masks)
