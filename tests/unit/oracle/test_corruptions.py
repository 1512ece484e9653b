"""Gold chains with one mistake: in the agent's own words, with what the search then finds, judged by the gold judge."""

import random
from collections import Counter
from functools import cache
from typing import get_args

import pytest

from stepladder.agents import make_agent
from stepladder.core.trace import ActionKind, Question, StopReason, Trajectory
from stepladder.explore.episode import EpisodeConfig
from stepladder.oracle.control_chains import CHAINS, gold_chains, rebuild_trajectory
from stepladder.oracle.corruptions import CORRUPTIONS, Corruptor, Mistake, garble
from stepladder.oracle.step_judge import judge
from stepladder.oracle.step_verdicts import Fault, Verdict, reward_target
from stepladder.retrieval.index.bm25 import BM25Index
from tests.support.atlas import cached_atlas
from tests.support.samples import QUESTION, WordRetriever

KINDS = ("misread", "detour", "repeat", "early_answer", "wrong_answer")


@cache
def atlas() -> tuple[BM25Index, tuple[Question, ...]]:
    made = cached_atlas()
    return BM25Index.from_passages(made.passages), tuple(made.questions["train"][:60])


@cache
def gold(agent: str) -> tuple[Trajectory, ...]:
    index, questions = atlas()
    return tuple(gold_chains(make_agent(agent), questions, index, EpisodeConfig(max_steps=12, k=1), seed=0))


def corrupted(agent: str, kind: str) -> list[Trajectory]:
    index, questions = atlas()
    corruptor = Corruptor(make_agent(agent), index, 1, questions, random.Random(1))
    made = [(chain, getattr(corruptor, kind)(chain)) for chain in gold(agent)]
    return [rebuild_trajectory(make_agent(agent), chain, turns) for chain, turns in made if turns]


def verdicts(chains: list[Trajectory]) -> Counter[str]:
    found = [verdict for chain in chains for verdict in judge(chain)]
    return Counter("none" if each is None else "good" if each.good else str(each.fault) for each in found)


@pytest.mark.parametrize("agent", ["prorag-brief", "reasonrag-brief"])
@pytest.mark.parametrize("kind", KINDS)
def test_nearly_every_chain_has_a_bad_step_and_good_ones_before_it(agent: str, kind: str) -> None:
    chains = corrupted(agent, kind)
    bad = [chain for chain in chains if any(each is not None and not each.good for each in judge(chain))]
    assert len(chains) > 40
    assert len(bad) > 0.75 * len(chains)
    assert verdicts(chains)["good"] > len(chains) * (0.5 if kind == "early" else 1)


@pytest.mark.parametrize(
    ("kind", "faults"),
    [("repeat", {"redundant"}), ("early_answer", {"premature", "unsupported"}), ("wrong_answer", {"wrong"})],
)
def test_mistakes_have_the_faults_they_should(kind: str, faults: set[str]) -> None:
    assert set(verdicts(corrupted("prorag-brief", kind))) - {"good", "none"} == faults


def test_what_is_written_is_what_the_agent_would_read_back() -> None:
    agent = make_agent("prorag-brief")
    for kind in KINDS:
        for chain in corrupted("prorag-brief", kind):
            for number, step in enumerate(chain.steps):
                before = Trajectory(chain.question, chain.agent, chain.steps[:number])
                assert agent.parse(step.written.text, before) == step.action


def test_a_changed_search_is_made_anew() -> None:
    index, _ = atlas()
    for chain in corrupted("prorag-brief", "misread") + corrupted("prorag-brief", "detour"):
        for step in chain.steps:
            if step.action.kind is ActionKind.QUERY:
                assert step.passages == index.search([step.action.content], 1)[0]


@pytest.mark.parametrize("agent", ["prorag-brief", "reasonrag-brief"])
def test_a_misread_text_never_leads_to_the_right_answer(agent: str) -> None:
    chains = corrupted(agent, "misread")
    ended = [chain for chain in chains if chain.answer is not None]
    assert len(ended) > 0.6 * len(chains)  # the others compare what nobody knows
    right = [chain for chain in ended if chain.answer in chain.question.answers]
    assert len(right) < 0.05 * len(ended)  # unless a false start and a mistake cancel out
    queries = [step for chain in ended for step in chain.steps if step.action.kind is ActionKind.QUERY]
    assert len(queries) > 2 * len(ended)  # they go on to the end


def test_wrong_answers_are_faulty_for_a_reward_model_whatever_they_follow_from() -> None:
    follows = Verdict(Fault.DERIVED)
    assert reward_target(follows, ActionKind.ANSWER) == reward_target(follows, ActionKind.ANSWER, "good") == 0.0
    assert reward_target(follows, ActionKind.SUB_ANSWER) is None
    assert reward_target(follows, ActionKind.SUB_ANSWER, "good") == 1.0
    assert reward_target(None, ActionKind.ANSWER) is None


def test_a_chain_that_is_cut_off_has_not_ended() -> None:
    ends = {chain.stop for chain in corrupted("prorag-brief", "misread")}
    assert None in ends
    assert {chain.stop for chain in corrupted("prorag-brief", "early_answer")} == {StopReason.ANSWERED}


def test_as_many_as_can_be_made() -> None:
    agent = make_agent("prorag-brief")
    (chain,) = gold_chains(agent, [QUESTION], WordRetriever(), EpisodeConfig(k=1), seed=0)
    corruptor = Corruptor(agent, WordRetriever(), 1, [QUESTION], random.Random(0))
    assert len(corruptor.corrupt(chain, 6)) == 6
    assert corruptor.corrupt(chain, 0) == []


def test_kinds_that_are_left_out_are_not_made_and_the_others_as_often() -> None:
    agent = make_agent("prorag-brief")
    (chain,) = gold_chains(agent, [QUESTION], WordRetriever(), EpisodeConfig(k=1), seed=0)

    def made(*leave_out: str) -> list[Trajectory]:
        corruptor = Corruptor(agent, WordRetriever(), 1, [QUESTION], random.Random(0))
        return corruptor.corrupt(chain, 40, leave_out)

    early, wrong = ("early_answer", "answer_first"), ("misread", "wrong_answer")
    assert any(len(each.steps) < 5 for each in made(*wrong))
    assert all(len(each.steps) >= 5 for each in made(*early, "misread"))
    assert {each.answer for each in made(*wrong, "early_answer")} == {chain.answer}
    assert len(made("misread")) == len(made("repeat")) == 40
    assert made(*CORRUPTIONS) == []
    assert made() == made("shuffled")


def test_the_kinds_have_their_names() -> None:
    assert CORRUPTIONS == KINDS
    kinds = {name for part in get_args(Mistake) for name in get_args(part) or (part,)}
    assert kinds == {*CHAINS, *KINDS} - {"gold"}


@pytest.mark.parametrize("text", ["Ada Orm", "Velm", "1,234", "12 May 1871", "x"])
def test_garbled_text_is_text(text: str) -> None:
    rng = random.Random(0)
    found = [garble(text, "Tollen Vask", rng) for _ in range(50)]
    assert all(found)
    assert sum(each != text for each in found) > 45
