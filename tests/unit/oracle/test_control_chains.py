"""Control chains: spoilt gold trajectories look like a policy's own, and the gold judge finds the fault."""

import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from stepladder.agents import AGENTS, make_agent
from stepladder.agents.base import Agent
from stepladder.core.trace import ActionKind, Hop, Question, StopReason, Trajectory
from stepladder.engines.transformers.tokenization import Encoding
from stepladder.explore.episode import EpisodeConfig, new_segments
from stepladder.judges.prm.prm_inputs import PRMInputBuilder
from stepladder.models.tiny import tiny_tokenizer
from stepladder.oracle.control_chains import CHAINS, control_chains, control_variants
from stepladder.oracle.step_judge import Fault, judge
from stepladder.oracle.step_verdicts import verdict_value
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.prm.prm_data import from_chains
from stepladder.train.sft.demonstrations import gold_demonstrations
from tests.support.atlas import cached_atlas
from tests.support.samples import PASSAGES, QUESTION, WordRetriever

SEARCHING = [name for name in AGENTS if ActionKind.QUERY in make_agent(name).kinds]
COMPARED = Question(
    "q2",
    "Which was built first, Orm Tower or Velm Mill?",
    ("Orm Tower",),
    (
        Hop("When was Orm Tower built?", "1871", ("p1",)),
        Hop("When was Velm Mill built?", "1902", ("p4",)),
        Hop("Which is earlier, #1 or #2?", "Orm Tower"),
    ),
    (("p1",), ("p4",)),
)
MILL = replace(PASSAGES[2], id="p4", title="Velm Mill", text="Velm Mill was built in 1902.")


def play(agent: Agent, question: Question = QUESTION) -> Trajectory:
    retriever = WordRetriever((*PASSAGES, MILL))
    (trajectory,) = gold_demonstrations(agent, [question], retriever, EpisodeConfig(k=1), seed=0).kept
    return trajectory


@cache
def atlas_trajectories(name: str) -> tuple[Trajectory, ...]:
    atlas = cached_atlas()
    index = BM25Index.from_passages(atlas.passages)
    settings = EpisodeConfig(k=3, max_steps=20)
    return gold_demonstrations(make_agent(name), atlas.questions["dev"][:120], index, settings, seed=0).kept


def actions(trajectory: Trajectory) -> list[str]:
    return [step.action.content for step in trajectory.steps]


def faults(trajectory: Trajectory) -> list[Fault | None]:
    return [verdict.fault for verdict in judge(trajectory) if verdict is not None]


def test_the_four_chains_of_a_question() -> None:
    agent = make_agent("prorag-brief")
    made = control_variants(agent, play(agent), random.Random(0))
    assert {name: actions(chain) for name, chain in made.items()} == {
        "gold": ["Who designed Orm Tower?", "Ada Tarn", "Where was Ada Tarn born?", "Velm", "Velm"],
        "shuffled": ["Where was Ada Tarn born?", "Velm", "Who designed Orm Tower?", "Ada Tarn", "Velm"],
        "truncated": ["Who designed Orm Tower?", "Ada Tarn", "Velm"],
        "answer_first": ["Velm"],
    }
    assert {name: faults(chain) for name, chain in made.items()} == {
        "gold": [None] * 5,
        "shuffled": [Fault.PREMATURE, None, None, None, None],
        "truncated": [None, None, Fault.UNSUPPORTED],
        "answer_first": [Fault.UNSUPPORTED],
    }


def test_thoughts_and_passages_move_with_their_actions() -> None:
    agent = make_agent("prorag-brief")
    made = control_variants(agent, play(agent), random.Random(0))
    kept = {step.action.content: (step.action, step.passages) for step in made["gold"].steps[:-1]}
    for step in made["shuffled"].steps[:-1]:
        assert (step.action, step.passages) == kept[step.action.content]
    assert "1. Who designed Orm Tower?" in made["shuffled"].steps[2].action.thought
    text = "".join(segment.text for segment in made["shuffled"].context())
    assert text.index("born?</subquery>") < text.index("[1] Ada Tarn:") < text.index("Orm Tower?</subquery>")


@pytest.mark.parametrize("name", SEARCHING)
def test_chains_look_as_if_the_policy_had_written_them(name: str) -> None:
    agent = make_agent(name)
    trajectory = play(agent)
    made = control_variants(agent, trajectory, random.Random(0))
    assert tuple(made) == CHAINS
    assert made["gold"] == trajectory
    for chain in made.values():
        assert chain.stop is StopReason.ANSWERED
        for index, step in enumerate(chain.steps):
            state = replace(chain, steps=chain.steps[:index], stop=None)
            assert (step.read, step.restarts) == new_segments(state, agent.render(state))
            assert chain.consumed(index) == agent.render(state)
            assert agent.parse(step.written.text, state) == step.action


def test_a_chain_holds_no_tokens_even_where_the_trajectory_did() -> None:
    agent = make_agent("prorag-brief")
    trajectory = play(agent)
    read = [
        replace(
            step, written=replace(step.written, tokens=(1, 2)), read=tuple(replace(s, tokens=(3,)) for s in step.read)
        )
        for step in trajectory.steps
    ]
    assert control_variants(agent, replace(trajectory, steps=tuple(read)), random.Random(0))["gold"] == trajectory


def test_one_search_can_only_be_skipped() -> None:
    agent = make_agent("prorag-brief")
    single = Question("q3", "Who designed Orm Tower?", ("Ada Tarn",), QUESTION.hops[:1], QUESTION.gold_passages[:1])
    assert tuple(control_variants(agent, play(agent, single), random.Random(0))) == ("gold", "answer_first")


def test_searches_that_do_not_build_on_each_other_have_no_wrong_order() -> None:
    agent = make_agent("prorag-brief")
    assert tuple(control_variants(agent, play(agent, COMPARED), random.Random(0))) == (
        "gold",
        "truncated",
        "answer_first",
    )


def test_a_search_that_found_more_than_it_was_for_can_be_the_last() -> None:
    agent = make_agent("prorag-brief")
    first, *rest = play(agent).steps
    lucky = replace(play(agent), steps=(replace(first, passages=PASSAGES), *rest))
    assert tuple(control_variants(agent, lucky, random.Random(0))) == ("gold", "shuffled", "answer_first")


def test_an_agent_that_does_not_search_has_nothing_to_spoil() -> None:
    agent = make_agent("cot")
    assert tuple(control_variants(agent, play(agent), random.Random(0))) == ("gold",)


def test_the_generator_draws_the_order() -> None:
    agent = make_agent("prorag-brief")
    longest = max(atlas_trajectories("prorag-brief"), key=lambda each: each.question.searches_needed)
    orders = {tuple(actions(control_variants(agent, longest, random.Random(seed))["shuffled"])) for seed in range(20)}
    assert len(orders) > 5
    assert tuple(actions(longest)) not in orders
    assert control_variants(agent, longest, random.Random(3)) == control_variants(agent, longest, random.Random(3))


def test_only_a_trajectory_that_answers_can_be_spoilt() -> None:
    agent = make_agent("prorag-brief")
    cut = replace(play(agent), steps=play(agent).steps[:2], stop=StopReason.STEP_LIMIT)
    with pytest.raises(ValueError, match="'q1' ends with step_limit"):
        control_variants(agent, cut, random.Random(0))


def test_on_atlas_gold_is_all_good_and_every_other_chain_has_a_fault() -> None:
    agent, rng = make_agent("prorag-brief"), random.Random(0)
    made: Counter[str] = Counter()
    for trajectory in atlas_trajectories("prorag-brief"):
        chains = control_variants(agent, trajectory, rng)
        made.update(chains.keys())
        assert set(faults(chains.pop("gold"))) == {None}
        assert all(set(faults(chain)) != {None} for chain in chains.values())
        assert len({tuple(actions(chain)) for chain in chains.values()}) == len(chains)
        if trajectory.question.kind == "bridge":
            assert "shuffled" in chains
    assert made["gold"] == made["answer_first"] > 100
    assert min(made["shuffled"], made["truncated"]) > 60


def test_control_chains_are_made_of_what_the_search_allows() -> None:
    """A question whose gold passage cannot be found, and one without a decomposition, give none."""
    agent = make_agent("prorag-brief")
    lost = replace(QUESTION, id="lost", hops=(QUESTION.hops[0], replace(QUESTION.hops[1], passages=("nowhere",))))
    questions = [QUESTION, lost, replace(QUESTION, id="bare", hops=())]
    made = control_chains(agent, questions, WordRetriever(), EpisodeConfig(k=1), seed=0)
    assert {name: [chain.question.id for chain in chains] for name, chains in made.items()} == {
        name: ["q1"] for name in CHAINS
    }
    again = control_chains(agent, questions, WordRetriever(), EpisodeConfig(k=1), seed=0)
    assert again == made
    other = control_chains(agent, questions, WordRetriever(), EpisodeConfig(k=1), seed=1)
    assert other != made  # the thoughts are worded differently


@pytest.mark.parametrize("name", ["prorag-brief", "reasonrag-brief"])
def test_a_reward_model_learns_from_chains_what_the_gold_judge_says(name: str) -> None:
    """Steps that restart the context are examples of their own; together they have every verdict."""
    agent = make_agent(name)
    builder = PRMInputBuilder(Encoding(tiny_tokenizer()), 4096, tiny_tokenizer().pad_token_id)
    chains = list(control_variants(agent, play(agent), random.Random(0)).values())
    examples = list(from_chains(chains, builder))
    assert len(examples) == (len(chains) if name == "prorag-brief" else sum(len(chain.steps) for chain in chains))
    found = [verdict_value(verdict) for chain in chains for verdict in judge(chain)]
    verdicts = [value for value in found if value is not None]
    assert [value for example in examples for value in example.values] == verdicts
    assert 0.0 in verdicts
    assert 1.0 in verdicts


def test_answers_of_chains_may_be_masked() -> None:
    agent = make_agent("prorag-brief")
    builder = PRMInputBuilder(Encoding(tiny_tokenizer()), 4096, tiny_tokenizer().pad_token_id)
    chains = list(control_variants(agent, play(agent), random.Random(0)).values())
    steps = [len(example.values) for example in from_chains(chains, builder)]
    masked = [len(example.values) for example in from_chains(chains, builder, answers=False)]
    answered = [each for each in steps if each > 1]  # one chain is an answer alone
    assert masked == [each - 1 for each in answered]
