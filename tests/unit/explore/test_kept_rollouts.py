"""Search trees that keep the steps of their rollouts as nodes."""

from dataclasses import replace
from typing import Any

import pytest

from stepladder.core.requests import Generate
from stepladder.core.trace import ActionKind, Tree
from stepladder.driver import Driver
from stepladder.engines.scripted import Script, ScriptedEngine
from stepladder.explore.mcts import MCTSConfig, mcts_search
from stepladder.explore.values import monte_carlo
from tests.support.samples import QUESTION, WordRetriever
from tests.support.trees import AGENT, SETTINGS, many, stroll

KEPT = replace(SETTINGS, keep_rollouts=True)


class Counted(ScriptedEngine):
    """Counts the calls that a server would get: samples of one state are one."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.states: list[Any] = []

    def _reply(self, request: Generate) -> Any:
        self.states.append((request.context, request.sampling))
        return super()._reply(request)


def grow(settings: MCTSConfig, question: Any = QUESTION, seed: int = 7, script: Script = stroll) -> tuple[Tree, int]:
    """The tree, and the calls it took."""
    engine = Counted(script)
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


def two_hops(request: Generate) -> str:
    """Two queries with their sub-answers, in three variants each, and always the same answer."""
    assert request.trajectory is not None
    done = len(request.trajectory.steps)
    if done == 4:
        return "<step>So.</step><answer>Velm</answer>"
    tag = "subanswer" if done % 2 else "subquery"
    return f"<step>Look.</step><{tag}>{done} {request.seed % 3}</{tag}>"


def test_the_states_on_the_way_of_a_rollout_have_siblings() -> None:
    tree, calls = grow(replace(KEPT, simulations=1), script=two_hops)
    assert calls == 5
    assert [node.visits for node in tree.nodes].count(1) == 6
    assert [len(siblings) > 1 for siblings in tree.children_by_node() if siblings] == [True] * 4 + [False]
    assert not any(node.rollouts for node in tree.nodes)


@pytest.mark.parametrize("answer", ["Velm", "Orm"])
def test_the_next_rollout_starts_near_the_end_of_the_last_one(answer: str) -> None:
    question = replace(QUESTION, answers=(answer,))
    tree, calls = grow(replace(KEPT, simulations=2, parallel=1), question, script=two_hops)
    assert [node.visits for node in tree.nodes].count(2) == 4
    assert calls == 5 + 1


def test_rollouts_of_one_wave_through_one_state_expand_it_once() -> None:
    tree, _ = grow(replace(KEPT, width=1, parallel=4))
    assert tree.nodes[0].visits == KEPT.simulations
    assert {len(siblings) for siblings in tree.children_by_node()} == {0, 1}


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

    assert rate(KEPT) > 1.5 * rate(SETTINGS)
