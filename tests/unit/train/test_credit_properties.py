"""What holds of every estimator, whatever the episodes and the evidence."""

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings as effort, strategies as st

from stepladder.core.trace import Passage, StopReason, Trajectory
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import EpisodeGroup, Evidence, Floats
from stepladder.train.grpo.credit.credit_group import credit_group
from stepladder.train.grpo.credit.gain import final_potentials, step_gains
from stepladder.train.grpo.credit.potentials import POTENTIALS as KNOWN
from tests.support.credit import ANSWER, MALFORMED, QUERY, answered, ended, settings, step
from tests.support.samples import PASSAGES

POTENTIALS = ("prm", "monte-carlo", "likelihood", "recall", "graph", "agreement")
MODES = [
    *({"mode": mode} for mode in ("outcome", "process", "dual", "first-error", "tree")),
    {"mode": "dual", "normalize": "peers", "std": "sample"},
    {"mode": "dual", "normalize_rewards": "apart"},
    {"mode": "tree", "tree": {"credit": "gains"}, "normalize_rewards": "apart"},
    {"mode": "tree", "tree": {"credit": "branches"}},
    *({"mode": "gain", "potential": each, "outcome_weight": 0} for each in POTENTIALS),
    {"mode": "gain", "potential": "recall", "normalize_rewards": "apart"},
    {"mode": "gain", "potential": "graph", "center_gains": True},
]
NAMES = ["-".join(str(each) for each in mode.values()) for mode in MODES]
DISTANCES = {"p1": (2, 0), "p2": (0, 1), "p3": (5, None)}


def test_there_are_no_other_potentials() -> None:
    assert set(get_args(GRPOConfig.model_fields["potential"].annotation)) == set(POTENTIALS) == set(KNOWN)


@st.composite
def episodes(draw: Any) -> Trajectory:
    found = st.lists(st.sampled_from(PASSAGES), max_size=2).map(tuple)
    queries = [
        step(draw(st.sampled_from([QUERY, MALFORMED])), tokens=draw(st.integers(1, 4)), found=draw(found))
        for _ in range(draw(st.integers(0, 3)))
    ]
    if draw(st.booleans()) or not queries:
        return ended(*queries, step(ANSWER, draw(st.sampled_from(["Velm", "Oss", "Velm on Oss"]))))
    return ended(*queries, stop=StopReason.STEP_LIMIT)


Group = tuple[list[Trajectory], Evidence]


@st.composite
def groups(draw: Any) -> Group:
    group = [draw(episodes()) for _ in range(draw(st.integers(2, 5)))]

    def per_step(values: st.SearchStrategy[Any]) -> list[list[Any]]:
        return [[draw(values) for _ in each.steps] for each in group]

    some = st.lists(st.sampled_from([answered("Velm"), answered("Oss")]), max_size=3)
    ids = iter(range(100, 1000))
    nodes = [[1 + draw(st.integers(0, 1)), *(next(ids) for _ in each.steps[1:])] for each in group]
    return group, Evidence(
        per_step(st.none() | st.floats(-5, 5)),
        nodes,
        DISTANCES,
        per_step(st.none() | st.floats(-5, 0)),
        per_step(some),
    )


def reordered(evidence: Evidence, order: list[int]) -> Evidence:
    def own(values: Any) -> Any:
        return [values[each] for each in order]

    names = ("step_scores", "nodes", "answer_logps", "continuations")
    return replace(evidence, **{name: own(getattr(evidence, name)) for name in names})


def advantages(group: list[Trajectory], mode: dict[str, Any], evidence: Evidence) -> list[tuple[float, ...]]:
    return [row.advantages for row in credit_group(group, settings(**mode), evidence)]


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@effort(max_examples=25)
@given(groups(), st.randoms())
def test_a_permutation_of_episodes_permutes_the_advantages(mode: dict[str, Any], some: Group, random: Any) -> None:
    group, evidence = some
    order = list(range(len(group)))
    random.shuffle(order)
    before = advantages(group, mode, evidence)
    after = advantages([group[each] for each in order], mode, reordered(evidence, order))
    for place, each in enumerate(order):
        assert after[place] == pytest.approx(before[each], abs=1e-9)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@effort(max_examples=25)
@given(groups())
def test_one_advantage_per_step_and_the_same_every_time(mode: dict[str, Any], some: Group) -> None:
    group, evidence = some
    found = advantages(group, mode, evidence)
    assert [len(each) for each in found] == [len(each.steps) for each in group]
    assert found == advantages(group, mode, evidence)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@effort(max_examples=15)
@given(episodes(), st.integers(2, 5))
def test_episodes_that_are_alike_have_no_advantage_over_each_other(
    mode: dict[str, Any], one: Trajectory, count: int
) -> None:
    """Nor has any step, where nothing distinguishes it from others, or a state from the next one."""
    group = [one] * count
    scores = [[1.0] * len(one.steps)] * count
    nodes = [list(range(1, len(one.steps) + 1))] * count
    plain = all(each.action.is_strict for each in one.steps)
    states: list[list[list[Trajectory]]] = [[[] for _ in one.steps]] * count
    evidence = Evidence(scores, nodes, {}, [[None] * len(one.steps)] * count, states)
    found = advantages(group, mode, evidence)
    if mode["mode"] in ("outcome", "tree") or mode.get("center_gains"):
        assert all(each == pytest.approx((0.0,) * len(each)) for each in found)
    if mode["mode"] in ("process", "dual", "first-error") and plain:
        assert all(each == pytest.approx((0.0,) * len(each)) for each in found)
    if mode["mode"] == "gain" and mode["potential"] in ("monte-carlo", "likelihood", "agreement"):
        # Nothing is known but the ends, which are alike: the question is worth as much.
        assert all(each == pytest.approx((0.0,) * len(each)) for each in found)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode["mode"] == "gain"], ids=lambda mode: mode["potential"])
@effort(max_examples=25)
@given(groups())
def test_gains_sum_to_the_last_potential_less_the_first(mode: dict[str, Any], some: Group) -> None:
    group, evidence = some
    config = settings(
        **{**mode, "outcome_weight": 0, "process_weight": 1.0, "normalize_rewards": "together", "center_gains": False}
    )
    rows = credit_group(group, config, evidence)
    rewards = [row.reward for row in rows]
    own = EpisodeGroup(group, rewards, rewards, rewards, evidence)
    values, ends = KNOWN[config.potential].values(own), final_potentials(own, config)
    assert ends == pytest.approx([(reward - 1) / 2 for reward in rewards])
    firsts = [next((each for each in states if each is not None), end) for states, end in zip(values, ends)]
    start = sum(firsts) / len(firsts)
    for row, states, end in zip(rows, values, ends):
        first = start if states[0] is None else states[0]
        assert sum(row.advantages) == pytest.approx(end - first, abs=1e-9)


@given(st.lists(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=6), min_size=1, max_size=5), st.data())
def test_what_is_known_in_between_changes_who_earns_and_not_how_much(
    values: list[list[float | None]], data: st.DataObject
) -> None:
    ends = data.draw(st.lists(st.floats(-1, 1), min_size=len(values), max_size=len(values)))
    start = data.draw(st.floats(0, 1))
    known = [[start, *own[1:]] for own in values]

    def sums(found: list[Floats]) -> list[float]:
        return [float(each.sum()) for each in found]

    blind = [[start, *[None] * (len(own) - 1)] for own in values]
    assert sums(step_gains(known, ends)) == pytest.approx(sums(step_gains(blind, ends)), abs=1e-9)


@pytest.mark.parametrize("mode", MODES, ids=NAMES)
@effort(max_examples=15)
@given(groups(), groups())
def test_nothing_leaks_from_one_group_to_another(mode: dict[str, Any], one: Group, other: Group) -> None:
    alone = advantages(one[0], mode, one[1])
    advantages(other[0], mode, other[1])
    assert advantages(one[0], mode, one[1]) == alone


def test_passages_of_other_episodes_are_not_counted() -> None:
    first = ended(step(QUERY, found=PASSAGES), step(ANSWER, "Oss"))
    second = ended(step(QUERY, found=(Passage("p9", "x", "y"),)), step(ANSWER, "Oss"))
    mode = {"mode": "gain", "potential": "recall", "outcome_weight": 0, "process_weight": 1.0}
    assert advantages([first, second], mode, Evidence()) == [pytest.approx((1, -1)), pytest.approx((0, 0))]
