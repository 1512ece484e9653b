"""Search trees that keep the steps of their rollouts as nodes."""

from dataclasses import replace
from typing import Any

import pytest

from stepladder.core.requests import Generate
from stepladder.core.trace import ActionKind, Tree
from stepladder.driver import Driver
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.mcts import MCTSConfig, mcts_search
from stepladder.explore.values import monte_carlo
from tests.support.samples import QUESTION, WordRetriever
from tests.support.trees import AGENT, SETTINGS, many, stroll

KEPT = replace(SETTINGS, keep_rollouts=True)


class Counted(ScriptedEngine):
    """Counts the calls that a server would get: samples of one state are one."""

    def __init__(self) -> None:
        super().__init__(stroll)
        self.states: list[Any] = []

    def _reply(self, request: Generate) -> Any:
        self.states.append((request.context, request.sampling))
        return super()._reply(request)


def grow(settings: MCTSConfig, question: Any = QUESTION, seed: int = 7) -> tuple[Tree, int]:
    engine = Counted()
    driver = Driver(engine, WordRetriever(), generation_cache=1000)
    (done,) = driver.run([lambda: mcts_search(AGENT, question, settings, seed)])
    assert done.value is not None, done.failure
    return done.value, len(set(engine.states))


def test_every_simulation_is_counted_and_every_rollout_is_a_branch() -> None:
    tree, _ = grow(KEPT)
    assert tree.nodes[0].visits == KEPT.simulations
    for node, children in zip(tree.nodes, tree.children_by_node()):
        own = len(node.rollouts) + (node.visits if node.reward is not None else 0)
        assert node.visits == sum(child.visits for child in children) + own
    ends = [node for node in tree.nodes if node.stop is not None]
    assert all(node.reward is not None for node in ends)
    assert sum(len(node.rollouts) for node in tree.nodes) < tree.nodes[0].visits / 4


def test_values_are_means_of_what_is_below_discounted_per_step() -> None:
    tree, _ = grow(replace(KEPT, gamma=1.0))
    for node, value in zip(tree.nodes, monte_carlo(tree)):
        if node.visits:
            assert node.value == pytest.approx(value)


def test_siblings_have_different_actions_and_the_tree_depends_on_its_seed_alone() -> None:
    tree, _ = grow(KEPT)
    assert tree == grow(KEPT)[0]
    for siblings in tree.children_by_node():
        actions = [(node.step.action.kind, node.step.action.content) for node in siblings if node.step]
        told = [action for action in actions if action[0] is not ActionKind.MALFORMED]
        assert len(set(told)) == len(told)


def test_more_groups_with_different_values_per_call() -> None:
    def rate(settings: MCTSConfig) -> float:
        groups = calls = 0
        for number, question in enumerate(many(12)):
            tree, own = grow(settings, question, number)
            calls += own
            for siblings in tree.children_by_node():
                values = [node.value if node.visits else node.reward for node in siblings]
                known = [value for value in values if value is not None]
                groups += len(known) > 1 and max(known) - min(known) >= 0.05
        return groups / calls

    assert rate(KEPT) > 1.2 * rate(SETTINGS)
