"""Reward model scores for every step of the trees of a run.

In: a file of trees and a scoring function. Out: a file of scores next to the evaluation of the reward model, because
trees are grown before it is trained. The file holds a hash of the trees and is ignored for any others.
"""

import hashlib
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.trace import Trajectory, Tree
from stepladder.explore.tree_store import read_trees

#: The score of the step of each node, by node id. The root has none.
NodeScores = dict[int, float]
#: Scores trajectories: for each, one number per step.
StepScoring = Callable[[Sequence[Trajectory]], Sequence[Sequence[float]]]
#: Trees whose steps are scored together.
_TREES_AT_ONCE = 32


class _TreeScores(BaseModel):
    """The content of the file: a hash of the file of trees, and scores by question id."""

    model_config = ConfigDict(extra="forbid")

    trees: str
    scores: dict[str, NodeScores]


def score_tree(tree: Tree, score: StepScoring) -> NodeScores:
    """The score of every step, with one pass per branch. Scores of shared steps agree up to rounding."""
    return _score_trees([tree], score)[0]


def _score_trees(trees: Sequence[Tree], score: StepScoring) -> list[NodeScores]:
    branches = [
        (number, tree, node)
        for number, tree in enumerate(trees)
        for node, children in zip(tree.nodes, tree.children_by_node())
        if node.step is not None and not children
    ]
    found: list[NodeScores] = [{} for _ in trees]
    all_scores = score([tree.trajectory(leaf) for _, tree, leaf in branches])
    for (number, tree, leaf), scores in zip(branches, all_scores, strict=True):
        found[number] |= zip((node.id for node in tree.branch(leaf)[1:]), scores, strict=True)
    return found


def write_tree_scores(path: Path, trees: Path, score: StepScoring) -> None:
    """Score every step of the trees in a file."""
    scores: dict[str, NodeScores] = {}
    grown = iter(read_trees(trees))
    while some := list(islice(grown, _TREES_AT_ONCE)):
        scores |= zip((tree.question.id for tree in some), _score_trees(some, score), strict=True)
    with atomic_file(path, "wb", what="scores of trees") as file:
        file.write(_TreeScores(trees=_hash(trees), scores=scores).model_dump_json().encode() + b"\n")


def read_tree_scores(path: Path, trees: Path) -> dict[str, NodeScores]:
    """The scores by question id; empty if there is no such file, or if it belongs to other trees."""
    if not path.is_file():
        return {}
    try:
        found = _TreeScores.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise StepladderError(
            f"{path}: not a file of tree scores: {error.errors()[0]['msg']}. Delete its folder and run the command "
            "that made it again"
        ) from error
    return found.scores if found.trees == _hash(trees) else {}


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
