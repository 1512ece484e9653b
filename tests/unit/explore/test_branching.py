"""Trees that grow by branching off: how many ends they have, what branches share, and what their nodes are worth."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings as examples, strategies as st

from stepladder.agents import make_agent
from stepladder.core.answer_metrics import score
from stepladder.core.errors import BackendError
from stepladder.core.io.records import dumps, loads
from stepladder.core.requests import Generate, Sampling, empty_generation
from stepladder.core.trace import ActionKind, Node, StopReason, Tree
from stepladder.driver import Driver, Outcome
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.branching import branching
from stepladder.explore.episode import EpisodeConfig
from tests.support.samples import QUESTION, WordRetriever

AGENT = make_agent("prorag-brief")
EPISODE = EpisodeConfig(6, 1, Sampling(1.0, 1.0, 200))
QUERIES = ("Who designed Orm Tower?", "Where was Ada Tarn born?", "Where is Velm?")


def wander(request: Generate) -> str:
    """What is written depends on the seed and on nothing else than whose turn it is."""
    assert request.trajectory is not None
    steps = request.trajectory.steps
    draw = random.Random(request.seed)
    if steps and steps[-1].action.kind is ActionKind.QUERY:
        return f"<step>Read.</step><subanswer>{draw.choice(['Ada Tarn', 'Velm'])}</subanswer>"
    if draw.random() < 0.15:
        return "nothing that can be parsed"
    if draw.random() < 0.4:
        return f"<step>So {draw.randint(0, 99)}.</step><answer>{draw.choice(['Velm', 'Orm', 'Velm on Oss'])}</answer>"
    return f"<step>Look {draw.randint(0, 99)}.</step><subquery>{draw.choice(QUERIES)}</subquery>"


class Watched(ScriptedEngine):
    """Notes the tokens of everything that it read and wrote, by the text of it."""

    def __init__(self, script: Any = wander, **options: Any) -> None:
        super().__init__(script, **options)
        self.asked = 0
        self.seen: set[tuple[int, ...]] = set()

    def generate(self, requests: Sequence[Generate]) -> Any:
        replies = super().generate(requests)
        self.asked += len(requests)
        for reply in replies:
            if not isinstance(reply, BackendError):
                self.seen.add(tuple(token for part in (*reply.context, reply.written) for token in part.tokens))
        return replies


def run(
    engine: ScriptedEngine, seed: int = 7, stems: int = 2, branches: int = 4, agent: str = "prorag-brief", **driver: Any
) -> Outcome[Tree]:
    def job() -> Any:
        return branching(make_agent(agent), QUESTION, EPISODE, seed, stems=stems, branches=branches)

    (done,) = Driver(engine, WordRetriever(), **driver).run([job])
    return done


def grow(engine: ScriptedEngine | None = None, seed: int = 7, **shape: Any) -> Tree:
    done = run(engine or Watched(), seed, **shape)
    assert done.value is not None, done.failure
    return done.value


def ends(tree: Tree) -> list[Node]:
    return [node for node in tree.nodes if node.stop is not None]


@examples(max_examples=60)
@given(seed=st.integers(0, 10_000), stems=st.integers(1, 4), branches=st.integers(0, 6))
def test_every_stem_and_every_branch_comes_to_an_end_of_its_own(seed: int, stems: int, branches: int) -> None:
    engine = Watched()
    tree = grow(engine, seed, stems=stems, branches=branches)
    assert len(ends(tree)) == stems + branches
    assert tree.failures == 0
    children_by_node = tree.children_by_node()
    assert all(not children_by_node[node.id] for node in ends(tree)), "nothing goes on behind an end"
    assert all(children_by_node[node.id] for node in tree.nodes if node.stop is None)
    assert engine.asked == len(tree.nodes) - 1, "what branches share is written once"
    assert len(children_by_node[0]) >= stems


def test_branches_share_the_very_steps_they_began_with() -> None:
    tree = grow(stems=1, branches=6, seed=1)
    (stem, *others) = [tree.trajectory(end) for end in ends(tree)]
    assert len(stem.steps) > 2
    shared = [sum(1 for ours, theirs in zip(other.steps, stem.steps) if ours is theirs) for other in others]
    assert len(set(shared)) > 1, "some began at the question, others later"
    assert max(shared) < len(stem.steps), "none at the end"
    for other, count in zip(others, shared):
        assert other.steps[:count] == stem.steps[:count]
        assert other.steps[count] is not stem.steps[count]


def test_branches_hold_exactly_what_the_engine_saw() -> None:
    engine = Watched()
    tree = grow(engine, stems=3, branches=8)
    branches = [tree.trajectory(node) for node in tree.nodes[1:]]
    assert {tuple(token for part in branch.context() for token in part.tokens) for branch in branches} == engine.seen
    assert any(branch.steps[-1].passages for branch in branches)


def test_ends_earn_their_f1_and_a_node_is_worth_the_mean_of_the_ends_below_it() -> None:
    tree = grow(stems=3, branches=9)
    children_by_node = tree.children_by_node()

    def below(node: Node) -> list[float]:
        own = [] if node.reward is None else [node.reward]
        return own + [reward for child in children_by_node[node.id] for reward in below(child)]

    for node in tree.nodes:
        rewards = below(node)
        assert node.visits == len(rewards)
        assert node.value == pytest.approx(sum(rewards) / len(rewards))
        assert (node.reward is None) == (node.stop is None)
        if node.stop is not None:
            assert node.reward == score(tree.trajectory(node)).f1
    assert len({node.reward for node in ends(tree)}) > 1


def test_the_stems_share_the_branches_equally() -> None:
    tree = grow(stems=3, branches=6, seed=2)
    stems = tree.nodes[0].visits - 6
    assert stems == 3
    first_steps = tree.children_by_node()[0][:3]
    from_the_question = len(tree.children_by_node()[0]) - 3
    assert sum(node.visits for node in first_steps) == 9 - from_the_question
    assert all(node.visits <= 3 for node in first_steps), "itself and two branches at most"


def test_the_same_seed_gives_the_same_tree_in_whatever_batches() -> None:
    tree = grow()
    assert grow() == tree
    assert loads(dumps(tree), Tree) == tree
    assert grow(Watched(max_batch=1)) == tree
    assert grow(Watched(max_batch=2, concurrency=4)) == tree
    assert grow(seed=8) != tree


def test_no_two_branches_draw_the_same() -> None:
    seeds: list[int] = []

    def noting(request: Generate) -> str:
        seeds.append(request.seed)
        return wander(request)

    grow(Watched(noting), stems=4, branches=8)
    assert len(set(seeds)) == len(seeds) > 12


def test_a_branch_that_fails_is_counted_and_leaves_nothing() -> None:
    alone = grow(stems=2, branches=0)

    class Shaky(Watched):
        """Breaks the first request behind the stems."""

        replies = 0

        def _reply(self, request: Generate) -> Any:
            self.replies += 1
            return BackendError("busy") if self.replies == len(alone.nodes) else super()._reply(request)

    tree = grow(Shaky(), stems=2, branches=4)
    assert tree.failures == 1
    assert len(ends(tree)) == 2 + 3
    assert tree.nodes[0].visits == 5
    assert tree.nodes[: len(alone.nodes)] == tuple(
        replace(node, visits=found.visits, value=found.value) for node, found in zip(alone.nodes, tree.nodes)
    )


def test_a_stem_that_fails_leaves_its_branches_to_the_others() -> None:
    seeds: list[int] = []

    class Shaky(Watched):
        """Breaks the first step of the first stem."""

        def _reply(self, request: Generate) -> Any:
            seeds.append(request.seed)
            return BackendError("busy") if request.seed == seeds[0] else super()._reply(request)

    tree = grow(Shaky(), stems=2, branches=4)
    assert tree.failures == 1
    assert len(ends(tree)) == 1 + 4


def test_a_tree_of_which_nothing_works_fails_with_the_reason() -> None:
    engine = Watched(lambda request: BackendError("the server is on fire"))
    failure = run(engine, stems=2).failure
    assert failure is not None
    assert failure.reason == "the server is on fire"
    assert engine.asked == 2, "branches were not tried"


def test_a_question_that_fills_the_window_has_no_end_but_is_counted() -> None:
    class Narrow(Watched):
        def _reply(self, request: Generate) -> Any:
            return empty_generation(request.context)

    tree = grow(Narrow(), stems=2, branches=4)
    assert (len(tree.nodes), tree.failures) == (1, 2)


def test_a_context_that_runs_full_is_an_end() -> None:
    class Narrow(Watched):
        def _reply(self, request: Generate) -> Any:
            assert request.trajectory is not None
            full = len(request.trajectory.steps) >= 2
            return empty_generation(request.context) if full else super()._reply(request)

    tree = grow(Narrow(), stems=4, branches=0)
    full = [node for node in tree.nodes if node.stop is StopReason.CONTEXT_LIMIT]
    assert full
    assert all(node.reward == 0.0 for node in full)


def test_an_agent_that_looks_first_looks_once() -> None:
    retriever = WordRetriever()
    engine = Watched(lambda request: f"<answer>{request.seed}</answer>")
    (done,) = Driver(engine, retriever).run(
        [lambda: branching(make_agent("rag"), QUESTION, EPISODE, 7, stems=2, branches=3)]
    )
    tree = done.value
    assert tree is not None
    assert retriever.calls == [[QUESTION.text]]
    assert len(tree.given) == 1
    assert len(tree.children_by_node()[0]) == 5, "one step from the question to each end"


@pytest.mark.parametrize(("stems", "branches"), [(0, 4), (2, -1)])
def test_a_tree_without_a_stem_is_refused(stems: int, branches: int) -> None:
    failure = run(Watched(), stems=stems, branches=branches).failure
    assert failure is not None
    assert f"stems is {stems} and branches is {branches}; at least one stem is needed" in failure.reason
