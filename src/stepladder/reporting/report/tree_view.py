"""Search trees of a run: a small, informative selection.

In: a `RunData`. Out: a few `TreeView`s that contain both right and wrong answers, over questions that need few or many
searches. Large trees are pruned to their most visited steps. If a PRM evaluation scored these trees, each step has its
PRM score.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from stepladder.core.trace import Node, Tree
from stepladder.core.unicode import readable
from stepladder.evaluation.prm.ranking import as_probabilities
from stepladder.evaluation.prm.tree_scores import NodeScores, read_tree_scores
from stepladder.explore.tree_store import read_trees
from stepladder.explore.values import spre
from stepladder.oracle.step_judge import judge_tree
from stepladder.oracle.step_verdicts import Verdict
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stage import EXAMINATION, TREES
from stepladder.pipeline.stages.prm_eval import TREE_SCORES
from stepladder.reporting.charts.tree_layout import is_unvisited, most_visited_path, ordered_children
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.report.tree_disputes import disputes_of
from stepladder.reporting.run_tables import stage_summary

#: Maximum trees in a report, and steps per tree.
MAX_TREES, MAX_STEPS = 12, 80


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of a tree and what is known about its step."""

    node: Node
    verdict: Verdict | None
    shortest: float | None
    #: PRM score from 0 to 1; None if not scored.
    prm: float | None
    #: Whether it is on the most visited path.
    best: bool
    unvisited: bool
    #: Whether its value, or its PRM score, contradicts another judgement: see tree_disputes.py.
    disputed: bool
    prm_against_gold: bool
    #: How the rollouts from here ended.
    rollouts: list[str]
    children: "list[NodeView]"


@dataclass(frozen=True, slots=True)
class TreeView:
    """A search tree."""

    tree: Tree
    #: Leaves with an answer, and how many of them are right.
    answered: int
    right: int
    children: list[NodeView]
    #: Number of steps that were pruned.
    pruned: int


@dataclass(frozen=True, slots=True)
class TreeSection:
    """The trees of one stage."""

    stage: str
    headline: str
    #: Number of trees that the stage made.
    total: int
    trees: list[TreeView]
    #: Index of the tree that is shown first.
    first: int
    #: The PRM evaluation that scored the trees; empty if none did.
    scored_by: str


def trees_of(run: RunData) -> TreeSection | None:
    """Informative trees of the newest tree search; None if there is none."""
    with_trees = [stage for stage in run.report.stages if TREES in stage.outputs]
    if not with_trees:
        return None
    stage = with_trees[-1]
    headline, _ = stage_summary(stage) or ("", {})
    path = run.folder / stage.name / stage.outputs[TREES]
    total = 0

    def counted() -> Iterable[Tree]:
        nonlocal total
        for tree in read_trees(path):
            total += 1
            yield tree

    chosen = most_informative(counted())
    if not chosen:
        return None
    first = chosen.index(max(chosen, key=_rank))
    scored_by, scores = scores_of_trees(run.folder, run.report.stages, path)
    trees = [tree_view(tree, scores.get(tree.question.id, {})) for tree in chosen]
    return TreeSection(stage.name, headline, total, trees, first, scored_by)


def scores_of_trees(folder: Path, stages: Sequence[StageRecord], trees: Path) -> tuple[str, dict[str, NodeScores]]:
    """The newest PRM evaluation of a run that scored these trees, and the scores. `stages`: the finished ones."""
    for stage in reversed(stages):
        if EXAMINATION in stage.outputs:
            scores = folder / stage.name / stage.outputs[EXAMINATION] / TREE_SCORES
            if found := read_tree_scores(scores, trees):
                return stage.name, found
    return "", {}


def most_informative(trees: Iterable[Tree], most: int = MAX_TREES) -> list[Tree]:
    """The trees that mix right and wrong answers most, in turn from questions that need 1, 2, ... searches."""
    by_need: dict[int, list[Tree]] = {}
    for tree in trees:
        group = by_need.setdefault(tree.question.searches_needed, [])
        group.append(tree)
        group.sort(key=_rank, reverse=True)
        del group[most:]  # all trees may not fit into memory
    in_turn = chain.from_iterable(zip_longest(*(by_need[need] for need in sorted(by_need))))
    found = list(islice((tree for tree in in_turn if tree is not None), most))
    return sorted(found, key=lambda tree: tree.question.searches_needed)


def _rank(tree: Tree) -> tuple[int, int, int]:
    """Prefers mixed results, then many branch points, then few nodes."""
    answered, right = answers_of(tree)
    forks = sum(len(family) > 1 for family in tree.children_by_node())
    return min(right, answered - right), forks, -len(tree.nodes)


def answers_of(tree: Tree) -> tuple[int, int]:
    """Number of leaves with an answer, and with a right answer."""
    rewards = [node.reward for node in tree.nodes if node.stop is not None and node.stop.has_answer]
    return len(rewards), sum(reward == 1 for reward in rewards)


def tree_view(tree: Tree, scores: Mapping[int, float], most: int = MAX_STEPS) -> TreeView:
    """The view of a tree. `scores`: PRM logits by node; `most`: maximum number of steps."""
    kept = _most_visited(tree, most)
    children_by_node, best = ordered_children(tree), frozenset(most_visited_path(tree))
    judged, shortest = judge_tree(tree), spre(tree)
    probabilities = prm_scores(scores)
    disputes = disputes_of(tree, judged, probabilities)

    def children(parent: Node) -> list[NodeView]:
        return [
            NodeView(
                node,
                judged[node.id],
                shortest[node.id],
                probabilities.get(node.id),
                node.id in best,
                is_unvisited(node),
                node.id in disputes.values,
                node.id in disputes.prm,
                _endings(node),
                children(node),
            )
            for node in children_by_node[parent.id]
            if node.id in kept
        ]

    return TreeView(tree, *answers_of(tree), children(tree.nodes[0]), len(tree.nodes) - 1 - len(kept))


def prm_scores(logits: Mapping[int, float]) -> dict[int, float]:
    """PRM scores from 0 to 1 by node, from logits."""
    return dict(zip(logits, as_probabilities([*logits.values()])))


def _most_visited(tree: Tree, most: int) -> frozenset[int]:
    """Ids of the most visited nodes. Parents are always included: they are visited at least as often."""
    kept = {0}
    for node in sorted(tree.nodes[1:], key=lambda node: (-node.visits, node.id)):
        if len(kept) <= most and node.parent in kept:
            kept.add(node.id)
    return frozenset(kept - {0})


def _endings(node: Node) -> list[str]:
    """How the rollouts of a node ended, the most frequent ending first."""
    endings = Counter(
        f"F1 {each.reward:.2f} after {each.steps} more step{'' if each.steps == 1 else 's'}: "
        + readable(each.answer or each.stop.value)
        for each in node.rollouts
    )
    return [f"{words} ({times} times)" if times > 1 else words for words, times in endings.most_common()]
