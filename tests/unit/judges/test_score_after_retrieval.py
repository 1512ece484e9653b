"""Queries that are scored with what they found: where, alike before and after the next step, and in every later use."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from stepladder import Question, Trajectory
from stepladder.agents import agent_named, make_agent, name_agent
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Sampling
from stepladder.core.trace import ActionKind, Author, Node, StopReason, Tree
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.guided import Guide, guided_search
from stepladder.explore.tree_store import TreeFile
from stepladder.judges.prm import scores_after_retrieval
from stepladder.judges.prm.prm_inputs import PRMInput
from stepladder.judges.prm.reward_model import ProcessRewardModel, load_for_training, with_scalar_head
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.resources import RunContext, SharedConfig
from stepladder.pipeline.stages import Task
from stepladder.pipeline.stages.prm import PRMStageConfig, run_prm
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_data import collate_examples, from_trees
from stepladder.train.sft.demonstrations import gold_demonstrations
from tests.support.prm_training import AGENT, TOKENIZER, builder
from tests.support.sampled_steps import AGENT as SAMPLED_AGENT, GOOD, OTHER, Sampled
from tests.support.samples import PASSAGES, QUESTION, WordRetriever

AGENTS = ("prorag-brief", "react-brief", "reasonrag-brief")
EPISODE = EpisodeConfig(max_steps=6, k=2, sampling=Sampling(temperature=1.0))


def played(agent: str, question: Question = QUESTION) -> Trajectory:
    (made,) = gold_demonstrations(make_agent(agent), [question], WordRetriever(), EPISODE, seed=0).kept
    return made


def text_of(tokens: Sequence[int]) -> str:
    return str(TOKENIZER.decode(list(tokens)))


def read_to(inputs: Sequence[PRMInput]) -> list[str]:
    """What is read up to the score of each step, in the order of the steps."""
    found = {step: text_of(each.tokens[: end + 1]) for each in inputs for step, end in zip(each.steps, each.ends)}
    return [found[step] for step in sorted(found)]


def expected(trajectory: Trajectory) -> list[str]:
    """The same, from the texts of the trajectory."""
    texts = []
    for place, step in enumerate(trajectory.steps):
        text = "".join(each.text for each in (*trajectory.consumed(place), step.written))
        if step.action.kind is ActionKind.QUERY:
            following = trajectory.steps[place + 1]
            shown = [each.text for each in following.read if each.author is Author.ENVIRONMENT]
            passages = "\n".join(f"[{n}] {each.title}: {each.text}" for n, each in enumerate(step.passages, start=1))
            text += f"\n{passages}\n" if following.restarts else shown[0]
        texts.append(text)
    return texts


def cut(trajectory: Trajectory, steps: int) -> Trajectory:
    """The state after so many steps, as a search sees it."""
    return replace(trajectory, steps=trajectory.steps[:steps], stop=None)


def random_reward(folder: Path, *, after: bool) -> Path:
    model = with_scalar_head(tiny_model(), tiny_tokenizer(), "tiny")
    torch.nn.init.normal_(model.score.weight, std=0.5, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr, arg-type]
    ProcessRewardModel(model, tiny_tokenizer(), score_after_retrieval=after).save(folder)
    return folder


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_reward(tmp_path_factory.mktemp("after") / "reward", after=True)


def load(folder: Path, **options: Any) -> ProcessRewardModel:
    return ProcessRewardModel.load(folder, device="cpu", **options)


# --- where a step is scored ---------------------------------------------------------------------------------


@pytest.mark.parametrize("agent", AGENTS)
def test_queries_are_scored_behind_their_passages_and_other_steps_where_they_end(agent: str) -> None:
    trajectory = played(agent)
    found = read_to(builder(after_retrieval=True).trajectory(trajectory))
    assert found == expected(trajectory)
    before = read_to(builder().trajectory(trajectory))
    queries = [step.action.kind is ActionKind.QUERY for step in trajectory.steps]
    assert [a != b for a, b in zip(found, before, strict=True)] == queries
    assert sum(queries) == 2


@pytest.mark.parametrize("agent", AGENTS)
def test_a_query_has_its_score_before_the_next_step_is_written(reward: Path, agent: str) -> None:
    """Searches and environments score the newest step, trainers whole episodes."""
    model, trajectory = load(reward), played(agent)
    (whole,) = model.score_logits([trajectory])
    for steps in range(1, len(trajectory.steps)):
        (now,) = model.score_logits([cut(trajectory, steps)])
        assert now == pytest.approx(whole[:steps], abs=1e-4)


def test_a_score_depends_on_what_was_found_only_if_it_is_given_afterwards(reward: Path) -> None:
    first = cut(played(AGENT), 1)
    other = replace(first, steps=(replace(first.steps[0], passages=PASSAGES[2:]),))
    for after in (True, False):
        (a,), (b,) = load(reward, score_after_retrieval=after).score_logits([first, other])
        assert (a != pytest.approx(b, abs=1e-4)) == after


def test_a_query_at_the_step_limit_has_no_passages_and_is_scored_where_it_ends() -> None:
    first = cut(played(AGENT), 1)
    ended = replace(first, steps=(replace(first.steps[0], passages=()),), stop=StopReason.STEP_LIMIT)
    assert read_to(builder(after_retrieval=True).trajectory(ended)) == read_to(builder().trajectory(first))


@settings(max_examples=30)
@given(st.sampled_from(AGENTS), st.integers(10, 900), st.integers(1, 5))
def test_long_histories_are_cut_at_the_left(agent: str, window: int, steps: int) -> None:
    trajectory = played(agent)
    whole = expected(trajectory)[:steps]
    short = builder(window=window, after_retrieval=True)
    inputs = short.trajectory(cut(trajectory, steps))
    assert read_to(inputs) == [text[-window:] for text in whole]
    assert short.truncated == sum(len(text) > window for text in whole)
    assert all(0 <= place < end for each in inputs for end, own in zip(each.ends, each.others) for place in own)


def test_dense_weights_are_of_the_tokens_that_the_policy_wrote() -> None:
    trajectory = played(AGENT)
    nodes = [Node(number, number - 1, each) for number, each in enumerate(trajectory.steps, start=1)]
    tree = Tree(QUESTION, AGENT, (Node(0, None, None), *nodes))
    (example,) = from_trees([tree], builder(after_retrieval=True), lambda _: [None, *[1.0] * len(nodes)])
    batch = collate_examples([example], dense=0.5)
    ends = batch["columns"][: batch["steps"]].tolist()
    inside = batch["columns"][batch["steps"] :].tolist()
    weights = batch["weights"][batch["steps"] :].tolist()
    ids = batch["input_ids"][0].tolist()
    written = [step.written.text for step in trajectory.steps]
    for step, end in zip(trajectory.steps, ends, strict=True):
        text, is_query = step.written.text, step.action.kind is ActionKind.QUERY
        own = len(text) if is_query else len(text) - 1  # a query is scored at a token of the environment
        places, inside = inside[:own], inside[own:]
        assert text_of([ids[place] for place in places]) == text[:own]
        assert all(place < end for place in places)
        assert sum(weights[:own]) == pytest.approx(0.5, abs=1e-5)
        weights = weights[own:]
    assert inside == weights == []
    assert len(written) == 5


def test_in_a_chat_the_passages_are_the_users_next_message() -> None:
    """As the engine encodes them, if the policy has ended its turn."""
    plain = builder(after_retrieval=True)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}{{ eos }}{% endif %}"
        "{% endfor %}<assistant>"
    ).replace("{{ eos }}", tokenizer.eos_token)
    chat = replace(plain, encoding=type(plain.encoding)(tokenizer))
    first = cut(played(AGENT), 1)
    (step,) = first.steps
    ids = chat.encoding.encode(step.written)
    ended = replace(ids, tokens=(*ids.tokens, tokenizer.eos_token_id))
    (shown,) = agent_named(AGENT).render(first)[len(first.context()) :]
    turn = chat.encoding.encode_user_turn(shown, ended, {tokenizer.eos_token_id})
    assert turn is not None
    (made,) = chat.trajectory(replace(first, steps=(replace(step, written=ended),)))
    assert made.tokens[-len(turn.tokens) :] == turn.tokens


OWN = """
from stepladder.agents.search_r1 import SearchR1


class Own(SearchR1):
    name = "own-for-retrieval"
    passages_tag = "results"
"""


def test_agents_of_files_show_passages_their_own_way(tmp_path: Path) -> None:
    first = replace(cut(played(AGENT), 1), agent="own-for-retrieval")
    with pytest.raises(StepladderError, match="'own-for-retrieval' of a transcript is not known here: load its file"):
        builder(after_retrieval=True).trajectory(first)
    (tmp_path / "own.py").write_text(OWN)
    name_agent(tmp_path / "own.py")
    make_agent(str(tmp_path / "own.py"))
    (found,) = read_to(builder(after_retrieval=True).trajectory(first))
    assert found.endswith("\n</results>\n")


# --- settings -----------------------------------------------------------------------------------------------


def test_the_setting_travels_with_the_model(reward: Path, tmp_path: Path) -> None:
    published = shutil.copytree(reward, tmp_path / "published")
    assert scores_after_retrieval(published)
    assert load(published).reads_passages
    load(published).save(tmp_path / "again")
    assert load(tmp_path / "again").reads_passages
    model, tokenizer = load_for_training(published)  # trained further, to score the other way
    ProcessRewardModel(model, tokenizer, score_after_retrieval=False).save(tmp_path / "plain")
    assert not load(tmp_path / "plain").reads_passages
    assert "stepladder" not in (tmp_path / "plain" / "config.json").read_text()
    assert not scores_after_retrieval(tmp_path / "no folder")


def test_pairs_have_no_passages() -> None:
    with pytest.raises(ValueError, match="score_after_retrieval needs trees or episodes: objective verdicts or values"):
        PRMConfig(score_after_retrieval=True)
    assert "score_after_retrieval" in PRMConfig().inert()
    assert "score_after_retrieval" not in PRMConfig(objective="values", score_after_retrieval=True).inert()


@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["full", "lora"])
def test_what_is_found_can_be_learnt(tmp_path: Path, lora: dict[str, int] | None) -> None:
    """One query in all trees; only its passages tell whether it is good."""
    query = played(AGENT).steps[0]
    with TreeFile(tmp_path / "trees.jsonl.gz") as trees:
        for number in range(6):
            good = replace(query, passages=PASSAGES[:1]), 1.0
            bad = replace(query, passages=PASSAGES[2:]), 0.0
            nodes = [Node(n, 0, step, visits=1, value=value) for n, (step, value) in enumerate((good, bad), start=1)]
            found = [replace(each, rollouts=()) for each in nodes]
            ends = [Node(n + 2, n, answer(each.value), visits=1, stop=StopReason.ANSWERED, reward=each.value)
                    for n, each in enumerate(found, start=1)]  # fmt: skip
            trees.add(Tree(replace(QUESTION, id=f"q{number}"), AGENT, (Node(0, None, None, visits=2), *found, *ends)))
    shared = SharedConfig.read({"policy": "tiny", "agent": AGENT, "device": "cpu"})
    chosen = PRMStageConfig(
        objective="values", score_after_retrieval=True, num_train_epochs=10, batch_size=2, learning_rate=1e-2,
        dev_share=0.2, lora=lora,
    )  # fmt: skip
    task = Task("prm", tmp_path / "prm", 0, {"policy": "tiny", "trees": str(tmp_path / "trees.jsonl.gz")})
    run_prm(chosen, RunContext(shared), task)
    model = load(tmp_path / "prm" / "reward")
    assert model.reads_passages
    one = Trajectory(QUESTION, AGENT, (replace(query, passages=PASSAGES[:1]),))
    other = Trajectory(QUESTION, AGENT, (replace(query, passages=PASSAGES[2:]),))
    (good,), (bad,) = model.score_logits([one, other])
    assert good > bad + 1


def answer(value: float) -> Any:
    last = played(AGENT).steps[-1]
    first = cut(played(AGENT), 1)
    shown = replace(first, steps=(replace(first.steps[0], passages=PASSAGES[:1] if value else PASSAGES[2:]),))
    return replace(last, read=(agent_named(AGENT).render(shown)[-1],))


# --- searches -----------------------------------------------------------------------------------------------


def test_guided_search_retrieves_before_it_scores(reward: Path, tmp_path: Path) -> None:
    guide = GuideConfig(n=8, temperature=1.0)
    assert guide.guide(str(reward)).retrieve_first
    assert not guide.guide(str(random_reward(tmp_path / "plain", after=False))).retrieve_first
    retriever, model = WordRetriever(), load(reward, retokenize=True)
    search = partial(guided_search, SAMPLED_AGENT, QUESTION, EPISODE, guide.guide(str(reward)), 0)
    (outcome,) = Driver(Sampled([GOOD, OTHER]), retriever, model).run([search])
    assert outcome.value is not None, outcome.failure
    searched = {query for call in retriever.calls for query in call}
    assert len(searched) > len(outcome.value.queries) > 0


@pytest.mark.parametrize("strategy", ["actions", "beam"])
def test_candidates_without_passages_are_refused(reward: Path, strategy: Any) -> None:
    search = partial(guided_search, SAMPLED_AGENT, QUESTION, EPISODE, Guide(strategy, n=8), 0)
    (outcome,) = Driver(Sampled([GOOD, OTHER]), WordRetriever(), load(reward, retokenize=True)).run([search])
    assert outcome.failure is not None
    assert "set retrieve_first=True in the Guide" in outcome.failure.reason


@pytest.mark.parametrize("strategy", ["trajectories", "mcts"])
def test_searches_that_retrieve_anyway_need_nothing(reward: Path, strategy: Any) -> None:
    search = partial(guided_search, SAMPLED_AGENT, QUESTION, EPISODE, Guide(strategy, n=4, simulations=8), 0)
    (outcome,) = Driver(Sampled([GOOD, OTHER]), WordRetriever(), load(reward, retokenize=True)).run([search])
    assert outcome.value is not None, outcome.failure


def test_the_key_is_in_the_config(reward: Path) -> None:
    assert json.loads((reward / "config.json").read_text())["stepladder_score_after_retrieval"] is True
