"""What a reward model thinks of every step of the trees of a run.

In: a file of trees, and whoever scores trajectories. Out: a file of scores beside the examination of the reward model,
because trees are grown before it is there. It says by a hash which trees it is of: with others it gives nothing.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.trace import Trajectory, Tree
from stepladder.explore.tree_store import read_trees

#: By node id: the score of the step that led there. The root has none.
NodeScores = dict[int, float]
#: One score a step, for each trajectory.
ScoreSteps = Callable[[Sequence[Trajectory]], Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class _TreeScores:
    """The file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    #: A hash of the file of trees.
    trees: str
    #: By the id of a tree's question.
    scores: dict[str, NodeScores]


_FILE = TypeAdapter(_TreeScores)


def score_tree(tree: Tree, score: ScoreSteps) -> NodeScores:
    """The score of every step, in one pass a branch. Branches that share a step agree on it, but for rounding."""
    leaves = [node for node, family in zip(tree.nodes, tree.children_by_node()) if node.step is not None and not family]
    found: NodeScores = {}
    for leaf, scores in zip(leaves, score([tree.trajectory(leaf) for leaf in leaves])):
        found |= zip((node.id for node in tree.branch(leaf)[1:]), scores, strict=True)
    return found


def write_tree_scores(path: Path, trees: Path, score: ScoreSteps) -> None:
    """Score every step of the trees in a file."""
    scores = {tree.question.id: score_tree(tree, score) for tree in read_trees(trees)}
    with atomic_file(path, "wb", what="scores of trees") as file:
        file.write(_FILE.dump_json(_TreeScores(_hash(trees), scores)) + b"\n")


def read_tree_scores(path: Path, trees: Path) -> dict[str, NodeScores]:
    """By the id of a tree's question, its scores; nothing where there is no such file, or it is of other trees."""
    if not path.is_file():
        return {}
    try:
        found = _FILE.validate_json(path.read_bytes())
    except ValidationError as error:
        raise StepladderError(
            f"{path}: not the scores of trees: {error.errors()[0]['msg']}. Delete the folder that it is in, and the "
            "command that made it makes it again"
        ) from error
    return found.scores if found.trees == _hash(trees) else {}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
