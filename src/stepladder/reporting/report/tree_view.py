"""Search trees to walk through, the most telling of those that a run has grown.

In: a `Run`. Out: a few `ShownTree`s: right and wrong answers side by side, of questions that need few or many searches.
Of a very large tree the steps that were visited most are shown; the others are counted. Where an examination has scored
these trees, each step is shown with what the reward model thinks of it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path

from stepladder.core.trace import Node, StopReason, Tree
from stepladder.evaluate.prm.ranking import as_probabilities
from stepladder.evaluate.prm.tree_scores import NodeScores, read_tree_scores
from stepladder.explore.tree_store import read_trees
from stepladder.explore.values import spre
from stepladder.oracle.step_judge import judge_tree
from stepladder.oracle.step_rules import Verdict
from stepladder.pipeline.stage import EXAMINATION, TREES
from stepladder.pipeline.stages.prm_eval import TREE_SCORES
from stepladder.reporting.charts.tree_layout import is_unvisited, most_visited_path, ordered_children
from stepladder.reporting.report.run_data import Run
from stepladder.reporting.report.step_view import ShownPassage, ShownStep, readable, shown_passages, shown_step
from stepladder.reporting.stage_summaries import stage_summary

#: Trees in a report, and steps of one tree.
MOST_TREES, MOST_STEPS = 12, 80


@dataclass(frozen=True, slots=True)
class ShownNode:
    """A step of a tree, and what the search learnt of it."""

    step: ShownStep
    visits: int
    #: Q; None where no simulation went.
    value: float | None
    #: F1 of an end.
    earned: float | None
    shortest: float | None
    #: Further scores by name that the search has kept.
    scores: Mapping[str, float]
    #: The reward model's score, from 0 to 1; None where it was not asked.
    prm: float | None
    #: Whether it lies on the way where most simulations went.
    best: bool
    unvisited: bool
    #: How episodes that were played on from here ended.
    rollouts: tuple[str, ...]
    children: tuple["ShownNode", ...]


@dataclass(frozen=True, slots=True)
class ShownTree:
    """A tree below its question."""

    question: str
    id: str
    answer: str
    simulations: int
    nodes: int
    #: Ends with an answer: how many, and how many of them are right.
    answered: int
    right: int
    searches_needed: int
    given: tuple[ShownPassage, ...]
    children: tuple[ShownNode, ...]
    #: Steps that are not shown.
    left_out: int


@dataclass(frozen=True, slots=True)
class Trees:
    """What is shown of an exploration."""

    stage: str
    headline: str
    grown: int
    shown: tuple[ShownTree, ...]
    #: Place of the one to begin with.
    first: int
    #: The stage whose reward model has scored them; nothing where none has.
    scored_by: str


def trees_of(run: Run) -> Trees | None:
    """The most telling trees of the newest exploration; None where there is none."""
    explored = [stage for stage in run.report.stages if TREES in stage.outputs]
    if not explored:
        return None
    stage = explored[-1]
    headline, _ = stage_summary(stage) or ("", {})
    path = run.folder / stage.name / stage.outputs[TREES]
    grown = 0

    def counted() -> Iterable[Tree]:
        nonlocal grown
        for tree in read_trees(path):
            grown += 1
            yield tree

    chosen = telling(counted())
    if not chosen:
        return None
    first = chosen.index(max(chosen, key=_rank))
    scored_by, scores = _scores(run, path)
    shown = tuple(shown_tree(tree, scores.get(tree.question.id, {})) for tree in chosen)
    return Trees(stage.name, headline, grown, shown, first, scored_by)


def _scores(run: Run, trees: Path) -> tuple[str, dict[str, NodeScores]]:
    """The newest examination that has scored these trees, and their scores."""
    for stage in reversed(run.report.stages):
        if EXAMINATION in stage.outputs:
            folder = run.folder / stage.name / stage.outputs[EXAMINATION]
            if found := read_tree_scores(folder / TREE_SCORES, trees):
                return stage.name, found
    return "", {}


def telling(trees: Iterable[Tree], most: int = MOST_TREES) -> list[Tree]:
    """Trees with the most right and wrong answers side by side, in turn of questions that need 1, 2, ... searches."""
    by_need: dict[int, list[Tree]] = {}
    for tree in trees:
        group = by_need.setdefault(tree.question.searches_needed, [])
        group.append(tree)
        group.sort(key=_rank, reverse=True)
        del group[most:]  # a large exploration does not fit into memory
    in_turn = chain.from_iterable(zip_longest(*(by_need[need] for need in sorted(by_need))))
    found = list(islice((tree for tree in in_turn if tree is not None), most))
    return sorted(found, key=lambda tree: tree.question.searches_needed)


def _rank(tree: Tree) -> tuple[int, int, int]:
    """Mixed results first, then those that divide most often, in the fewest steps."""
    answered, right = _answers(tree)
    forks = sum(len(family) > 1 for family in tree.children_by_node())
    return min(right, answered - right), forks, -len(tree.nodes)


def _answers(tree: Tree) -> tuple[int, int]:
    """Ends with an answer, and those of them that are right."""
    earned = [node.reward for node in tree.nodes if node.stop is StopReason.ANSWERED]
    return len(earned), sum(reward == 1 for reward in earned)


def shown_tree(tree: Tree, scores: Mapping[int, float], most: int = MOST_STEPS) -> ShownTree:
    """A tree, readable. `scores`: the reward model's, logits by node; `most`: steps that are shown."""
    kept = _most_visited(tree, most)
    children_by_node, way = ordered_children(tree), frozenset(most_visited_path(tree))
    judged, shortest = judge_tree(tree), spre(tree)
    chances = dict(zip(scores, as_probabilities([*scores.values()])))

    def below(node: Node) -> tuple[ShownNode, ...]:
        return tuple(
            _shown_node(
                child, judged[child.id], shortest[child.id], chances.get(child.id), child.id in way, below(child)
            )
            for child in children_by_node[node.id]
            if child.id in kept
        )

    answered, right = _answers(tree)
    return ShownTree(
        readable(tree.question.text),
        tree.question.id,
        readable(" | ".join(tree.question.answers[:3])),
        tree.nodes[0].visits,
        len(tree.nodes),
        answered,
        right,
        tree.question.searches_needed,
        shown_passages(tree.given),
        below(tree.nodes[0]),
        len(tree.nodes) - 1 - len(kept),
    )


def _most_visited(tree: Tree, most: int) -> frozenset[int]:
    """The steps to show. None without the steps before it: those are visited at least as often."""
    kept = {0}
    for node in sorted(tree.nodes[1:], key=lambda node: (-node.visits, node.id)):
        if len(kept) <= most and node.parent in kept:
            kept.add(node.id)
    return frozenset(kept - {0})


def _shown_node(
    node: Node,
    verdict: Verdict | None,
    shortest: float | None,
    prm: float | None,
    best: bool,
    children: tuple[ShownNode, ...],
) -> ShownNode:
    assert node.step is not None
    played = Counter(
        f"F1 {each.reward:.2f} after {each.steps} more step{'' if each.steps == 1 else 's'}: "
        + readable(each.answer or each.stop.value)
        for each in node.rollouts
    )
    rollouts = [f"{words} ({times} times)" if times > 1 else words for words, times in played.most_common()]
    return ShownNode(
        shown_step(node.step, verdict),
        node.visits,
        node.value if node.visits else None,
        node.reward,
        shortest,
        node.scores,
        prm,
        best,
        is_unvisited(node),
        tuple(rollouts),
        children,
    )
