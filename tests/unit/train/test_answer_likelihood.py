"""The likelihood of the gold answer in every state, against one forward pass per state."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from stepladder.agents import make_agent
from stepladder.core.requests import Sampling
from stepladder.core.trace import Author, Question, Segment, Trajectory
from stepladder.driver import Driver
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.train.grpo.answer_likelihood import AnswerLikelihood
from tests.support.grpo_training import Loose
from tests.support.samples import QUESTION, WordRetriever

MODEL = tiny_model()
ENGINE = TransformersEngine(MODEL, tiny_tokenizer())


def played(seed: int, question: Question = QUESTION) -> Trajectory:
    settings = EpisodeConfig(max_steps=4, k=1, sampling=Sampling(max_tokens=5, temperature=1.0))
    (outcome,) = Driver(ENGINE, WordRetriever()).run([lambda: episode(Loose(), question, settings, seed)])
    assert outcome.value is not None
    return outcome.value


EPISODES = [each for each in map(played, range(12)) if len(each.steps) > 1][:3]


def by_hand(context: list[int], opening: str, answer: str) -> float:
    """The mean log-prob of the bytes of an answer, with one plain forward pass."""
    tokenizer = tiny_tokenizer()
    before, after = tokenizer(opening)["input_ids"], tokenizer(answer)["input_ids"]
    ids = torch.tensor([context + before + after])
    with torch.no_grad():
        logps = MODEL(input_ids=ids).logits[0, :-1].log_softmax(-1)
    return float(logps.gather(1, ids[0, 1:, None])[-len(after) :, 0].mean())


@pytest.mark.parametrize(("agent", "opening"), [(Loose(), ""), (make_agent("prorag-brief"), "<step></step><answer>")])
def test_every_state_is_read_with_the_answer_behind_it(agent: object, opening: str) -> None:
    assert len(EPISODES) == 3
    found, tokens = AnswerLikelihood(MODEL, ENGINE, agent, nullcontext)(EPISODES)  # type: ignore[arg-type]
    rows = set()
    for own, each in zip(found, EPISODES, strict=True):
        assert len(own) == len(each.steps)
        for state, logp in enumerate(own):
            context = [token for part in each.consumed(state) for token in part.tokens]
            assert logp == pytest.approx(by_hand(context, opening, "Velm"), abs=1e-4)
            rows.add(tuple(context))
    assert len(rows) < sum(len(each.steps) for each in EPISODES), "the question is the same state in all"
    assert tokens == sum(len(row) + len(opening) + len("Velm") for row in rows)


@pytest.mark.parametrize("answer", ["a", "n", "er", "step", "Velm"])
def test_a_short_answer_is_not_looked_for_in_a_tag(answer: str) -> None:
    likelihood = AnswerLikelihood(MODEL, ENGINE, make_agent("prorag-brief"), nullcontext)
    one = replace(EPISODES[0], question=replace(QUESTION, answers=(answer,)))
    opening, found = likelihood._answer(one)
    assert (opening.text, found.text) == ("<step></step><answer>", answer)


def test_what_an_episode_answered_does_not_matter() -> None:
    one = EPISODES[0]
    last = one.steps[-1]
    other = replace(last, written=Segment(Author.POLICY, "zz", (1, 2), vocabulary=last.written.vocabulary))
    likelihood = AnswerLikelihood(MODEL, ENGINE, Loose(), nullcontext)
    assert likelihood([replace(one, steps=(*one.steps[:-1], other))]) == likelihood([one])


def test_a_question_without_an_answer_or_room_for_it_has_none() -> None:
    likelihood = AnswerLikelihood(MODEL, ENGINE, Loose(), nullcontext)
    one = EPISODES[0]
    assert likelihood([replace(one, question=replace(QUESTION, answers=()))]) == ([[None] * len(one.steps)], 0)
    room = sum(len(part.tokens) for part in one.consumed(0)) + len("Velm")
    narrow = TransformersEngine(MODEL, tiny_tokenizer())
    narrow.context_limit = room
    (found,), tokens = AnswerLikelihood(MODEL, narrow, Loose(), nullcontext)([one])
    assert [each is None for each in found] == [False, *[True] * (len(one.steps) - 1)]
    assert tokens == room
    assert likelihood([]) == ([], 0)
