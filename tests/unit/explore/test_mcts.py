"""Search trees: how they grow, what they depend on, and that they survive being killed."""

import gc
import gzip
import itertools
import math
import os
import random
import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as examples, strategies as st

from stepladder.agents import make_agent
from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.io.files import WriteError
from stepladder.core.io.records import RecordError, dumps
from stepladder.core.requests import Algorithm, Generate, Generation, Sampling, empty_generation
from stepladder.core.seeding import seed_of
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Author, Question, Segment, StopReason, Trajectory, Tree
from stepladder.driver import Driver, Failure
from stepladder.engines.scripted import ScriptedEngine
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.mcts import MCTSConfig, mcts_search, outcome
from stepladder.explore.tree_store import TreeFile, explore, read_trees
from stepladder.explore.values import depths_of, monte_carlo
from stepladder.pipeline.search_config import PRESETS, ExploreConfig
from tests.support.samples import PASSAGES, QUESTION, WordRetriever
from tests.support.trees import AGENT, QUERIES, SETTINGS, many, stroll, tree_of


def grow(script: Any = stroll, settings: MCTSConfig = SETTINGS, question: Question = QUESTION, **driver: Any) -> Tree:
    engine = ScriptedEngine(script)
    (done,) = Driver(engine, WordRetriever(), **driver).run([lambda: mcts_search(AGENT, question, settings, 7)])
    assert done.value is not None, done.failure
    return done.value


def fails(script: Any = stroll, settings: MCTSConfig = SETTINGS, question: Question = QUESTION) -> Failure:
    (done,) = Driver(ScriptedEngine(script), WordRetriever()).run([lambda: mcts_search(AGENT, question, settings, 7)])
    assert done.failure is not None
    return done.failure


# --- how a tree grows ---------------------------------------------------------------------------------------


def test_every_simulation_is_counted_on_its_whole_way() -> None:
    tree = grow()
    assert tree.nodes[0].visits == SETTINGS.simulations
    for node, children in zip(tree.nodes, tree.children_by_node()):
        below = sum(child.visits for child in children)
        own = len(node.rollouts) + (node.visits if node.reward is not None else 0)
        assert node.visits == below + own


class Troubled(ScriptedEngine):
    """Fails now and then, fails for good in some states, and has a window of so many characters."""

    def __init__(self, script: Any, seed: int, hiccups: float, dead_ends: float, window: int) -> None:
        super().__init__(script)
        self.draw, self.seed = random.Random(seed), seed
        self.hiccups, self.dead_ends, self.window = hiccups, dead_ends, window

    def _reply(self, request: Generate) -> Any:
        assert request.trajectory is not None
        said = [step.written.text for step in request.trajectory.steps]
        if self.draw.random() < self.hiccups or (
            said and random.Random(f"{self.seed}{said}").random() < self.dead_ends
        ):
            return BackendError("no")
        full = sum(len(part.text) for part in request.context) > self.window
        return empty_generation(request.context) if full else super()._reply(request)


def discounted(tree: Tree, gamma: float, decay: float) -> list[float]:
    """The mean outcome of the simulations through each node, discounted, from the finished tree alone."""
    depths = depths_of(tree)
    found: list[list[float]] = [[0.0, 0.0] for _ in tree.nodes]
    for node in tree.nodes:
        ends = [(rollout.reward, rollout.steps, 1) for rollout in node.rollouts]
        if node.reward is not None:
            ends.append((node.reward, 0, node.visits - len(node.rollouts)))
        for reward, steps, times in ends:
            length = depths[node.id] + steps
            for each in tree.branch(node):
                found[each.id][0] += times * reward * decay**length * gamma ** (length - depths[each.id])
                found[each.id][1] += times
    return [total / max(count, 1) for total, count in found]


@examples(max_examples=150)
@given(
    agent=st.sampled_from(["prorag-brief", "rag", "direct", "cot"]),
    seed=st.integers(0, 1000),
    hiccups=st.sampled_from([0.0, 0.0, 0.1]),
    dead_ends=st.sampled_from([0.0, 0.0, 0.2]),
    window=st.sampled_from([10, 300, 500, 100_000]),
    simulations=st.integers(1, 40),
    width=st.integers(1, 6),
    depth=st.integers(1, 6),
    selection=st.sampled_from(["uct", "puct", "puct-policy"]),
    gamma=st.sampled_from([1.0, 0.5]),
    decay=st.sampled_from([1.0, 0.9]),
    parallel=st.integers(1, 12),
    warmth=st.sampled_from([0.0, 1.0]),
    max_steps=st.integers(1, 8),
)
def test_whatever_happens_the_values_of_the_search_are_those_of_the_tree_it_leaves(
    agent: str, seed: int, hiccups: float, dead_ends: float, window: int, max_steps: int, warmth: float, **rules: Any
) -> None:
    def say(request: Generate) -> str:
        text = stroll(request) if request.seed % 9 else ""
        return text.replace("<step>So.</step>", "") if agent in ("rag", "direct") else text

    settings = MCTSConfig(
        EpisodeConfig(max_steps, 1, Sampling(0.9, 0.95, 200)), Sampling(warmth, 1.0, 200), c=1.5, **rules
    )
    driver = Driver(Troubled(say, seed, hiccups, dead_ends, window), WordRetriever())
    (done,) = driver.run([lambda: mcts_search(make_agent(agent), QUESTION, settings, seed)])
    if done.value is None:
        assert done.failure is not None
        assert done.failure.reason == "no"
        return
    tree = done.value
    assert tree.nodes[0].visits == settings.simulations - tree.failures
    for node, value in zip(tree.nodes, discounted(tree, settings.gamma, settings.decay)):
        assert len(tree.branch(node)) - 1 <= settings.depth
        if node.visits:
            assert value == pytest.approx(node.value)


def test_branches_hold_exactly_what_the_engine_saw() -> None:
    seen: dict[tuple[str, ...], tuple[int, ...]] = {}

    class Watching(ScriptedEngine):
        def generate(self, requests: Sequence[Generate]) -> Any:
            replies = super().generate(requests)
            for reply in replies:
                tokens = tuple(token for part in reply.context for token in part.tokens) + reply.written.tokens
                seen[tuple(part.text for part in (*reply.context, reply.written))] = tokens
            return replies

    (done,) = Driver(Watching(stroll), WordRetriever()).run([lambda: mcts_search(AGENT, QUESTION, SETTINGS, 7)])
    tree = done.value
    assert tree is not None
    for node in tree.nodes[1:]:
        branch = tree.trajectory(node)
        segments = (*branch.consumed(len(branch.steps) - 1), branch.steps[-1].written)
        assert tuple(token for part in segments for token in part.tokens) == seen[tuple(part.text for part in segments)]


def test_equal_actions_are_one_child_whatever_the_thought() -> None:
    tree = grow(settings=replace(SETTINGS, width=40))
    for children in tree.children_by_node():
        actions = [(child.step.action.kind, child.step.action.content) for child in children if child.step]
        assert len(actions) == len(set(actions))
    thoughts = {child.step.action.thought for child in tree.children_by_node()[0] if child.step}
    assert len(tree.children_by_node()[0]) <= len(QUERIES) + 4 < 40
    assert thoughts


def test_a_uniform_prior_is_shared_by_the_distinct_children() -> None:
    tree = grow()
    for children in tree.children_by_node():
        assert all(child.prior == pytest.approx(1 / len(children)) for child in children)


def test_the_policys_own_prior_prefers_what_it_finds_likely() -> None:
    class Sure(ScriptedEngine):
        """Finds longer texts less likely."""

        def _reply(self, request: Generate) -> Any:
            reply = super()._reply(request)
            assert not isinstance(reply, BackendError)
            logprobs = (-len(reply.text) / 100,) * len(reply.written.tokens)
            return replace(reply, written=replace(reply.written, logprobs=logprobs))

    settings = replace(SETTINGS, selection="puct-policy")
    (done,) = Driver(Sure(stroll), WordRetriever()).run([lambda: mcts_search(AGENT, QUESTION, settings, 7)])
    assert done.value is not None
    children = done.value.children_by_node()[0]
    assert sum(child.prior or 0 for child in children) == pytest.approx(1)
    by_length = sorted(children, key=lambda child: len(child.step.written.text) if child.step else 0)
    assert [child.prior for child in by_length] == sorted((child.prior or 0 for child in children), reverse=True)


def test_a_prior_without_log_probs_is_refused() -> None:
    class Silent(ScriptedEngine):
        def _reply(self, request: Generate) -> Any:
            reply = super()._reply(request)
            assert not isinstance(reply, BackendError)
            return replace(reply, written=replace(reply.written, logprobs=()))

    settings = replace(SETTINGS, selection="puct-policy")
    (done,) = Driver(Silent(stroll), WordRetriever()).run([lambda: mcts_search(AGENT, QUESTION, settings, 7)])
    assert done.failure is not None
    assert "use 'puct'" in done.failure.reason


def two_doors(request: Generate) -> str:
    """Half of the draws answer rightly at once, the others wrongly."""
    return f"<step>So.</step><answer>{'Velm' if request.seed % 2 else 'Orm'}</answer>"


@pytest.mark.parametrize("selection", ["uct", "puct"])
def test_the_better_child_is_visited_more(selection: Any) -> None:
    tree = grow(two_doors, replace(SETTINGS, selection=selection, c=0.5, simulations=40, parallel=1))
    right, wrong = sorted(tree.children_by_node()[0], key=lambda child: child.value, reverse=True)
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    assert right.visits > 2 * wrong.visits > 0


def test_uct_follows_its_formula() -> None:
    """Two ends worth 1 and 0, one simulation at a time: the visits are those of the rule worked out by hand."""
    c, visits, totals = 1.414, [0, 0], [0.0, 0.0]
    tree = grow(two_doors, replace(SETTINGS, selection="uct", c=c, simulations=30, parallel=1, gamma=1.0))
    rewards = [child.reward or 0.0 for child in tree.children_by_node()[0]]
    for _ in range(30):
        ranks = [
            totals[i] / visits[i] + c * math.sqrt(math.log(sum(visits)) / visits[i]) if visits[i] else math.inf
            for i in (0, 1)
        ]
        best = ranks.index(max(ranks))
        visits[best] += 1
        totals[best] += rewards[best]
    assert [child.visits for child in tree.children_by_node()[0]] == visits


def test_virtual_loss_spreads_a_wave_over_the_children() -> None:
    settings = replace(SETTINGS, simulations=4, parallel=4, width=12)
    spread = [child.visits for child in grow(settings=settings).children_by_node()[0]]
    assert sum(spread) == 4
    assert max(spread) == 1


def test_no_node_stands_deeper_than_the_depth() -> None:
    tree = grow(settings=replace(SETTINGS, depth=2, simulations=60))
    assert max(len(tree.branch(node)) - 1 for node in tree.nodes) == 2


def test_a_settled_tree_stops_early() -> None:
    settled = grow(two_doors, replace(SETTINGS, simulations=400, patience=12))
    assert 12 <= settled.nodes[0].visits < 100
    assert grow(two_doors, replace(SETTINGS, simulations=60)).nodes[0].visits == 60


def test_a_scorer_can_value_leaves_instead_of_roll_outs() -> None:
    class Grader(StepScorer):
        max_batch, concurrency = 8, 1

        def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
            return [(0.25,) * len(each.steps) for each in trajectories]

    settings = replace(SETTINGS, evaluate="score", gamma=1.0)
    driver = Driver(ScriptedEngine(stroll), WordRetriever(), Grader())
    (done,) = driver.run([lambda: mcts_search(AGENT, QUESTION, settings, 7)])
    assert done.value is not None
    scored = [node for node in done.value.nodes if node.scores]
    assert scored
    assert all(node.reward is None and not node.rollouts and node.scores == {"leaf": 0.25} for node in scored)
    unended = [node for node in scored if not any(child.visits for child in done.value.children(node))]
    assert all(node.value == 0.25 for node in unended if node.visits)


def test_a_leaf_that_may_not_grow_is_scored_once() -> None:
    scored = Counter[str]()

    class Grader(StepScorer):
        max_batch, concurrency = 8, 1

        def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...]]:
            scored.update(each.steps[-1].action.content for each in trajectories)
            return [(0.25,) for _ in trajectories]

    settings = replace(SETTINGS, evaluate="score", depth=1)
    Driver(ScriptedEngine(stroll), WordRetriever(), Grader()).run([lambda: mcts_search(AGENT, QUESTION, settings, 7)])
    assert set(scored.values()) == {1}


def test_a_full_context_is_an_end() -> None:
    class Narrow(ScriptedEngine):
        def _reply(self, request: Generate) -> Any:
            full = request.trajectory is not None and len(request.trajectory.steps) >= 2
            return empty_generation(request.context) if full else super()._reply(request)

    settings = replace(SETTINGS, simulations=80)
    (done,) = Driver(Narrow(stroll), WordRetriever()).run([lambda: mcts_search(AGENT, QUESTION, settings, 7)])
    assert done.value is not None
    full = [node for node in done.value.nodes if node.stop is StopReason.CONTEXT_LIMIT]
    assert full
    assert all(node.reward == 0.0 for node in full)


def test_a_question_without_answers_cannot_be_explored() -> None:
    assert "has no answers" in fails(question=replace(QUESTION, answers=())).reason


# --- what breaks --------------------------------------------------------------------------------------------


def test_a_call_that_fails_costs_a_simulation_not_the_tree() -> None:
    calls = Counter[str]()

    def shaky(request: Generate) -> Any:
        calls["all"] += 1
        return BackendError("the server hiccuped") if calls["all"] % 7 == 0 else stroll(request)

    tree = grow(shaky)
    assert 0 < tree.failures < SETTINGS.simulations
    assert tree.nodes[0].visits == SETTINGS.simulations - tree.failures


@pytest.mark.parametrize("parallel", [1, 4])
def test_a_state_that_cannot_be_gone_on_from_does_not_take_all_simulations(parallel: int) -> None:
    def refused(request: Generate) -> Any:
        """A server that will not go on from one of the queries, however often it is asked."""
        assert request.trajectory is not None
        return BackendError("filtered") if QUERIES[0] in request.trajectory.queries else stroll(request)

    tree = grow(refused, replace(SETTINGS, simulations=80, parallel=parallel))
    assert 0 < tree.failures < 25
    assert tree.nodes[0].visits == 80 - tree.failures


def test_one_hiccup_at_the_beginning_does_not_cost_the_tree() -> None:
    calls = itertools.count()

    def late(request: Generate) -> Any:
        """The children of the root are made, and then the first roll-out breaks."""
        hiccup = next(calls) == SETTINGS.width
        return BackendError("hiccup") if hiccup else f"<step>Look.</step><subquery>{request.seed}</subquery>"

    assert grow(late, replace(SETTINGS, parallel=1)).failures == 1


def test_failures_are_not_taken_for_a_settled_tree() -> None:
    calls = itertools.count()

    def out_for_a_while(request: Generate) -> Any:
        busy = 8 <= next(calls) < 40
        return BackendError("busy") if busy else f"<step>Look.</step><subquery>{request.seed}</subquery>"

    tree = grow(out_for_a_while, replace(SETTINGS, simulations=200, depth=1, patience=16))
    assert tree.failures > 16, "the engine was out for longer than the search is patient"
    assert 16 <= tree.nodes[0].visits < 30


@pytest.mark.parametrize("name", ["simulations", "width", "depth", "parallel"])
def test_a_tree_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        replace(SETTINGS, **{name: 0})


def test_a_tree_of_which_nothing_works_fails_at_once() -> None:
    calls = Counter[str]()

    def dead(request: Generate) -> Any:
        calls["all"] += 1
        return BackendError("the server is on fire")

    assert fails(dead).reason == "the server is on fire"
    assert calls["all"] <= SETTINGS.width


# --- what a tree depends on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("selection", ["uct", "puct"])
def test_trees_depend_neither_on_batch_size_nor_on_concurrency(selection: Any) -> None:
    settings = replace(SETTINGS, selection=selection)
    questions = many(12)

    def forest(in_flight: int, max_batch: int, threads: int, remembered: int) -> list[str]:
        engine = ScriptedEngine(stroll, max_batch=max_batch, concurrency=threads)
        driver = Driver(engine, WordRetriever(), in_flight=in_flight, generation_cache=remembered)
        done = driver.run(
            [lambda each=each: mcts_search(AGENT, each, settings, seed_of(1, each.id)) for each in questions]
        )
        assert all(each.value is not None for each in done)
        return [dumps(each.value) for each in done if each.value is not None]

    alone = forest(in_flight=1, max_batch=1, threads=1, remembered=0)
    assert len(set(alone)) == len(questions)
    assert forest(in_flight=12, max_batch=64, threads=1, remembered=0) == alone
    assert forest(in_flight=5, max_batch=3, threads=1, remembered=1000) == alone
    assert forest(in_flight=12, max_batch=2, threads=6, remembered=0) == alone


def test_another_seed_gives_another_tree() -> None:
    run = Driver(ScriptedEngine(stroll), WordRetriever()).run
    one, other, same = run([lambda seed=seed: mcts_search(AGENT, QUESTION, SETTINGS, seed) for seed in (1, 2, 1)])
    assert one.value == same.value
    assert one.value != other.value


def test_equal_generations_are_made_once() -> None:
    made = Counter[tuple[Any, ...]]()

    def counted(request: Generate) -> str:
        made[(tuple(part.text for part in request.context), request.sampling, request.seed)] += 1
        return stroll(request)

    grow(counted, generation_cache=10_000)
    assert max(made.values()) == 1
    unshared = sum(made.values())
    made.clear()
    grow(counted)
    assert sum(made.values()) > unshared, "roll-outs meet states that were met before"


def test_a_remembered_generation_fits_the_log_probs_of_whoever_asks() -> None:
    """Two branches wrote the same with log-probs that differ by a rounding: each keeps its own."""

    def ask(logprob: float) -> Algorithm[Generation]:
        said = Segment(Author.POLICY, "a", (97,), (logprob,), "bytes")
        prompt = Segment(Author.PROMPT, "p", (112,), (), "bytes")
        return (yield Generate((prompt, said, Segment(Author.ENVIRONMENT, "e"))))

    engine = ScriptedEngine(lambda request: "b")
    driver = Driver(engine, in_flight=1, generation_cache=8)
    first, second = (each.value for each in driver.run([lambda: ask(-0.5), lambda: ask(-0.4999)]))
    assert first is not None
    assert second is not None
    assert driver.counts.answered_by_cache == 1
    assert [part.logprobs for part in first.context] == [(), (-0.5,), ()]
    assert [part.logprobs for part in second.context] == [(), (-0.4999,), ()]
    assert second.context[2].tokens == (101,)
    assert first.written == second.written


# --- on disk ------------------------------------------------------------------------------------------------


def run(questions: list[Question], path: Path, script: Any = stroll, **driver: Any) -> Any:
    return explore(Driver(ScriptedEngine(script), WordRetriever(), **driver), questions, tree_of, path, seed=3)


def test_an_exploration_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.jsonl.gz", tmp_path / "cut.jsonl.gz"
    run(many(6), whole)
    assert run(many(3), cut).made == 3
    with cut.open("ab") as file:  # half of a tree, as a killed process leaves it
        file.write(whole.read_bytes()[:500])
    with pytest.raises(RecordError, match="the last tree is incomplete"):
        list(read_trees(cut))
    again = run(many(6), cut)
    assert (again.made, again.known) == (3, 3)
    assert cut.read_bytes() == whole.read_bytes()


def test_trees_are_in_the_order_of_their_questions_whenever_they_finished(tmp_path: Path) -> None:
    path = tmp_path / "trees.jsonl.gz"
    run(list(reversed(many(4))), path)
    assert [tree.question.id for tree in read_trees(path)] == ["q3", "q2", "q1", "q0"]
    before = {tree.question.id: tree for tree in read_trees(path)}
    assert run(many(5)[1:], path, in_flight=1).made == 1
    after = list(read_trees(path))
    assert [tree.question.id for tree in after] == ["q0", "q1", "q2", "q3", "q4"], "of other questions: first"
    assert all(tree == before.get(tree.question.id, tree) for tree in after)
    assert not list(tmp_path.glob(".*")), "no temporary file is left"


def test_trees_are_read_by_any_tool_that_reads_gzip(tmp_path: Path) -> None:
    trees = [grow(), grow(question=replace(QUESTION, id="q2"))]
    with TreeFile(tmp_path / "trees.jsonl.gz") as file:
        for tree in trees:
            file.add(tree)
        with pytest.raises(ValueError, match="already in the file"):
            file.add(trees[0])
    with gzip.open(file.path, "rt", encoding="utf-8") as lines:
        assert [line.rstrip("\n") for line in lines] == [dumps(tree) for tree in trees]


def test_failed_questions_are_counted_and_asked_again_by_the_next_run(tmp_path: Path) -> None:
    def broken(request: Generate) -> Any:
        assert request.trajectory is not None
        return BackendError("no") if request.trajectory.question.id == "q1" else stroll(request)

    path = tmp_path / "trees.jsonl.gz"
    first = explore(Driver(ScriptedEngine(broken), WordRetriever()), many(3), tree_of, path, seed=0)
    assert (first.made, dict(first.failures)) == (2, {"no": 1})
    second = explore(Driver(ScriptedEngine(stroll), WordRetriever()), many(3), tree_of, path, seed=0)
    assert (second.made, second.known) == (1, 2)


@pytest.fixture
def two_trees(tmp_path: Path) -> Path:
    path = tmp_path / "trees.jsonl.gz"
    with TreeFile(path) as file:
        for question in many(2):
            file.add(grow(settings=replace(SETTINGS, simulations=4), question=question))
    return path


def test_a_file_that_was_cut_anywhere_keeps_every_tree_that_was_whole(two_trees: Path, tmp_path: Path) -> None:
    whole = two_trees.read_bytes()
    first = whole.index(b"\x1f\x8b\x08", 1)  # where the second tree begins
    kept = {0: 0, len(whole): 2}
    for end in {*range(0, len(whole), 37), *range(first - 12, first + 12), *range(len(whole) - 12, len(whole))}:
        cut = tmp_path / "cut.jsonl.gz"
        cut.write_bytes(whole[:end])
        with TreeFile(cut) as file:
            kept[end] = len(file.ids)
        assert cut.read_bytes() == whole[: (0, first, len(whole))[kept[end]]]
        assert len(list(read_trees(cut))) == kept[end]
    assert kept == {end: (end >= first) + (end >= len(whole)) for end in kept}


def test_a_file_that_holds_something_else_is_refused_and_left_alone(two_trees: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer.gz"
    newer.write_bytes(gzip.compress(b'{"record":"tree","version":9,"forest":"deep"}\n'))
    garbage = tmp_path / "garbage.gz"
    garbage.write_bytes(b"these are no trees")
    damaged = tmp_path / "damaged.gz"
    damaged.write_bytes(two_trees.read_bytes() + bytes(100))
    for path, problem in ((newer, "Update Stepladder"), (garbage, "damaged at byte 0:"), (damaged, "before that byte")):
        before = path.read_bytes()
        with pytest.raises(RecordError, match=problem):
            TreeFile(path)
        with pytest.raises(RecordError, match=problem):
            list(read_trees(path))
        assert path.read_bytes() == before


def test_one_process_at_a_time_adds_trees(two_trees: Path) -> None:
    with TreeFile(two_trees), pytest.raises(StepladderError, match="in use by another process"):
        run(many(4), two_trees)
    assert run(many(4), two_trees).made == 2


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    def never(request: Generate) -> str:
        raise AssertionError("nothing should be asked")

    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "trees.jsonl.gz"):
        with pytest.raises(WriteError, match="cannot be opened to add trees"):
            run(many(1), path, never)


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """A full disk, as far as this process can tell. Short: what pytest prints may go to a file, too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing_half_written(two_trees: Path) -> None:
    size = two_trees.stat().st_size
    with pytest.raises(WriteError, match="The 2 trees before it are kept"), no_file_larger_than(size + 100):
        run(many(4), two_trees)
    assert two_trees.stat().st_size == size
    assert len(list(read_trees(two_trees))) == 2


def test_ctrl_c_while_a_tree_is_written_leaves_nothing_of_it(two_trees: Path, monkeypatch: Any) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(many(3), two_trees)
    assert len(list(read_trees(two_trees))) == 2


@pytest.mark.parametrize("problem", [BackendDown("the budget is spent"), KeyboardInterrupt()])
def test_whatever_ends_a_run_leaves_the_trees_that_were_done(problem: BaseException, tmp_path: Path) -> None:
    calls = itertools.count()

    def dying(request: Generate) -> str:
        if next(calls) == 600:
            raise problem
        return stroll(request)

    path, whole = tmp_path / "trees.jsonl.gz", tmp_path / "whole.jsonl.gz"
    with pytest.raises(type(problem)):
        run(many(12), path, dying, in_flight=4)
    done = {tree.question.id for tree in read_trees(path)}
    assert 0 < len(done) < 12
    run(many(12), whole)
    run(many(12), path)
    assert {tree.question.id: tree for tree in read_trees(path)} == {t.question.id: t for t in read_trees(whole)}


def test_two_questions_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StepladderError, match="1 ids occur more than once, such as 'q1'"):
        run([*many(3), *many(2)[1:]], tmp_path / "trees.jsonl.gz")


def test_a_tree_that_cannot_be_written_costs_its_question_only(tmp_path: Path) -> None:
    odd = replace(QUESTION, id="odd")
    object.__setattr__(odd, "kind", "half a character: \ud83d")  # past the record's own repair
    explored = run([*many(2), odd], tmp_path / "trees.jsonl.gz")
    assert explored.made == 2
    assert "cannot be written as JSON" in next(iter(explored.failures))


def test_trees_are_out_of_memory_once_they_are_written(tmp_path: Path) -> None:
    def alive() -> list[int]:
        kinds = Counter(type(each).__name__ for each in gc.get_objects())
        return [kinds[name] for name in ("Tree", "Node", "_State", "Trajectory")]

    gc.collect()
    gc.disable()  # nothing must wait for the collector
    try:
        before = alive()
        run(many(3), tmp_path / "trees.jsonl.gz", generation_cache=100)
        assert alive() == before
    finally:
        gc.enable()


# --- settings -----------------------------------------------------------------------------------------------


def test_presets_are_the_papers_constants_and_can_be_changed_one_by_one() -> None:
    reasonrag = ExploreConfig.read({"preset": "reasonrag"})
    assert (reasonrag.selection, reasonrag.c, reasonrag.width, reasonrag.simulations) == ("uct", 1.414, 2, 64)
    assert (reasonrag.depth, reasonrag.decay, reasonrag.gamma) == (7, 0.9, 1.0)
    prorag = ExploreConfig.read({"preset": "prorag", "simulations": 12}).search(EpisodeConfig(9, 2))
    assert (prorag.selection, prorag.c, prorag.gamma, prorag.width, prorag.depth) == ("puct", 2.5, 0.99, 5, 10)
    assert (prorag.episode.sampling.temperature, prorag.episode.sampling.top_p) == (0.9, 0.95)
    assert (prorag.rollout.temperature, prorag.simulations) == (0.0, 12)
    assert (prorag.episode.max_steps, prorag.episode.k) == (9, 2)
    assert PRESETS["prorag"]["simulations"] == 200


def test_an_end_earns_the_f1_of_its_answer() -> None:
    tree = grow()
    ends = [node for node in tree.nodes if node.stop is StopReason.ANSWERED]
    assert ends
    for node in ends:
        assert node.reward == outcome(tree.trajectory(node))
    assert any(node.reward == 1.0 for node in ends)
    assert len(PASSAGES) == 3
    assert monte_carlo(tree)[0] is not None
