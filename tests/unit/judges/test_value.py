"""The judge by value: which pairs of siblings it makes, in which order, and which it leaves out."""

from collections.abc import Sequence

import pytest

from stepladder.core.trace import Action, ActionKind, Author, Node, Question, Segment, Step, StopReason, Tree
from stepladder.explore.values import monte_carlo
from stepladder.judges.base import Preference
from stepladder.judges.value import ValueJudge

QUESTION = Question("q", "Where?", ("Velm",))


def tree_of(*rewards: float | None) -> Tree:
    """A root and its children, each an answer that earned something, or an unvisited query."""
    children = [
        Node(number, 0, step(ActionKind.QUERY))
        if reward is None
        else Node(number, 0, step(ActionKind.ANSWER), visits=1, stop=StopReason.ANSWERED, reward=reward)
        for number, reward in enumerate(rewards, start=1)
    ]
    return Tree(QUESTION, "prorag", (Node(0, None, None), *children))


def step(kind: ActionKind) -> Step:
    return Step((), Segment(Author.POLICY, "Velm"), Action(kind, "Velm"))


def preferences(judge: ValueJudge, tree: Tree) -> list[Preference]:
    with pytest.raises(StopIteration) as end:  # it asks nobody
        next(judge.prefer(tree, tree.nodes[1:]))
    found: list[Preference] = end.value.value
    return found


def test_every_pair_that_differs_enough_the_clearest_first() -> None:
    found = preferences(ValueJudge("monte-carlo", monte_carlo), tree_of(0.4, 1.0, 0.0, 0.405))
    assert [(each.chosen, each.rejected) for each in found] == [(2, 3), (2, 1), (2, 4), (4, 3), (1, 3)]
    assert (found[0].chosen_value, found[0].rejected_value) == (1.0, 0.0)
    assert found[0].reason == "monte-carlo 1 against 0"


def test_the_margin_itself_is_enough() -> None:
    tree = tree_of(0.25, 0.5)
    assert len(preferences(ValueJudge("v", monte_carlo, margin=0.25), tree)) == 1
    assert preferences(ValueJudge("v", monte_carlo, margin=0.26), tree) == []


def test_equal_and_unknown_values_make_no_pair() -> None:
    assert preferences(ValueJudge("v", monte_carlo), tree_of(0.5, 0.5, None)) == []


def test_a_tree_is_valued_once_for_all_its_families() -> None:
    calls = 0

    def values(tree: Tree) -> Sequence[float | None]:
        nonlocal calls
        calls += 1
        return monte_carlo(tree)

    judge, tree = ValueJudge("v", values), tree_of(0.0, 1.0)
    assert preferences(judge, tree) == preferences(judge, tree)
    assert calls == 1
    preferences(judge, tree_of(1.0, 0.0))
    assert calls == 2
