"""Constrained decoding: replies are in the grammar, and log-probs are those of the distribution that was sampled."""

import random
import sys
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from stepladder.agents import AGENTS, make_agent
from stepladder.agents.formats.play import Format, Play
from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.grammars.grammar import Constraint, Grammar, Text
from stepladder.core.io.records import dumps, loads
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import ActionKind, Author, Segment, Trajectory
from stepladder.driver import Driver
from stepladder.driver.request_cache import keys_of
from stepladder.engines.structured_outputs import GRAMMAR_FIELDS
from stepladder.engines.transformers import constrained
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.models.tiny import tiny_model
from tests.support import finite_language as finite
from tests.support.samples import QUESTION, WordRetriever
from tests.support.tokenizer_shapes import SHAPES

#: One of each format, with the shorter prompts where there are some.
NAMES = [name for name in AGENTS if f"{name}-brief" not in AGENTS]
HOT = Sampling(temperature=1.0, max_tokens=110)


def generate(engine: TransformersEngine, *requests: Generate) -> list[Generation]:
    replies = engine.generate(requests)
    assert all(isinstance(reply, Generation) for reply in replies), replies
    return replies  # type: ignore[return-value]


@cache
def shaped(name: str) -> TransformersEngine:
    """Random weights over a vocabulary, with some logits that belong to no token."""
    tokenizer = SHAPES[name]()
    model = tiny_model(vocab_size=len(tokenizer) + 5, hidden_size=16, intermediate_size=32, num_hidden_layers=1)
    return TransformersEngine(model, tokenizer, context_limit=16_000)


@pytest.mark.parametrize("shape", SHAPES)
def test_random_weights_play_whole_episodes_of_every_agent_without_a_slip(shape: str) -> None:
    """With any vocabulary: bytes, sentence pieces, tags that are tokens. Every step ends within its token limit."""
    settings = EpisodeConfig(max_steps=2, k=1, sampling=HOT)
    agents = [make_agent(name).playing(Play.of(Format.CONSTRAINED)) for name in NAMES]
    jobs = [partial(episode, agent, QUESTION, settings, seed) for agent in agents for seed in range(2)]
    outcomes = Driver(shaped(shape), WordRetriever()).run(jobs)
    for outcome in outcomes:
        assert outcome.value is not None, outcome.failure
        assert outcome.value.answer
        for step in outcome.value.steps:
            assert step.action.kind is not ActionKind.MALFORMED, step.written.text
            assert len(step.written.tokens) <= HOT.max_tokens
            assert step.written.grammar
    assert {len(outcome.value.steps) for outcome in outcomes if outcome.value} > {1}


def test_the_end_of_sequence_is_sampled_only_where_the_text_is_complete() -> None:
    """ReAct's bracket may be the end. With all weights 0, every allowed token is equally likely."""
    engine = shaped("smollm2")
    grammar = Grammar((("ab", Text("[]")), ("abc",)))
    constraint = engine.grammar_masks.start(Constraint(grammar, 100))

    def allowed() -> set[int]:
        return set(np.flatnonzero(np.unpackbits(constraint.allowed(), bitorder="little")).tolist())

    a, b, c = (engine.tokenizer.convert_tokens_to_ids(letter) for letter in "abc")
    assert a in allowed()
    assert not allowed() & engine.end_tokens
    for token in (a, b):
        constraint.accept(token)
        assert not allowed() & engine.end_tokens
    constraint.accept(c)
    assert engine.end_tokens <= allowed()
    with pytest.raises(BackendError, match="does not allow token"):
        constraint.accept(engine.tokenizer.convert_tokens_to_ids("["))


@pytest.mark.parametrize("counts", ["tokens", "characters"])
@pytest.mark.parametrize("shape", ["nano", "smollm2", "mistral"])
def test_masks_that_equal_states_share_are_those_of_each(shape: str, counts: Any) -> None:
    """Random texts, rich in incomplete characters and spaces, of grammars that begin in different ways."""
    masks, draw = shaped(shape).grammar_masks, random.Random(0)
    rare = {number for number, piece in enumerate(masks.vocabulary.tokens) if not piece[:1].strip() or piece[0] > 127}
    reused = ended = 0
    for name in ("prorag", "reasonrag", "react", "research"):
        grammar = make_agent(name).grammar(Trajectory(QUESTION, name))
        assert grammar is not None
        for _ in range(3):
            constraint = masks.start(Constraint(grammar, 110, counts))
            while not constraint.complete:
                reused += bool(constraint.progress.state.masks)
                allowed = np.unpackbits(constraint.allowed(), bitorder="little")
                exact = np.frombuffer(constraint.matcher.compute_bitmask(), dtype=np.uint8)
                if constraint.progress.must_end:
                    ended += 1
                else:
                    assert (allowed == np.unpackbits(exact[: masks.vocabulary.num_bytes], bitorder="little")).all()
                tokens = np.flatnonzero(allowed).tolist()
                token = draw.choice([each for each in tokens if each in rare and draw.random() < 0.9] or tokens)
                if token in masks.vocabulary.control_tokens:
                    break
                constraint.accept(token)
    assert reused > 100
    assert bool(ended) == (counts == "tokens")


# --- against enumeration --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> TransformersEngine:
    return TransformersEngine(finite.model(), finite.tokenizer())


def asked(temperature: float = 1.0, seed: int = 0, **options: Any) -> Generate:
    sampling = Sampling(temperature, max_tokens=finite.MAX_TOKENS)
    return Generate((Segment(Author.PROMPT, "ab"),), (), sampling, seed, grammar=finite.GRAMMAR, **options)


def test_the_probabilities_of_all_texts_sum_to_1(small: TransformersEngine) -> None:
    with torch.no_grad():
        total = sum(finite.logps(small.model, (2, 3), tokens).sum().exp() for tokens in finite.completions())
    assert float(total) == pytest.approx(1, abs=1e-5)
    assert len(list(finite.completions())) == 40


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_are_as_frequent_as_the_renormalized_probabilities_say(
    small: TransformersEngine, temperature: float
) -> None:
    count = 1000
    replies = generate(small, *(asked(temperature, seed) for seed in range(count)))
    seen = Counter(reply.written.tokens for reply in replies)
    with torch.no_grad():
        expected = {
            tokens: count * float(finite.logps(small.model, (2, 3), tokens, temperature).sum().exp())
            for tokens in finite.completions()
        }
    assert seen.keys() <= expected.keys()
    frequent = {tokens: number for tokens, number in expected.items() if number >= 5}
    rest = max(count - sum(frequent.values()), 1e-9)
    squares = [(seen[tokens] - number) ** 2 / number for tokens, number in frequent.items()]
    squares.append((count - sum(seen[tokens] for tokens in frequent) - rest) ** 2 / max(rest, 1))
    freedom = len(squares) - 1
    assert freedom > 8
    assert sum(squares) < freedom + 3 * (2 * freedom) ** 0.5, "chi-squared"


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_stored_log_probs_are_those_of_the_distribution_over_the_allowed_tokens(
    small: TransformersEngine, temperature: float
) -> None:
    """At temperature 1, as all stored log-probs are."""
    for reply in generate(small, *(asked(temperature, seed) for seed in range(40))):
        with torch.no_grad():
            expected = finite.logps(small.model, (2, 3), reply.written.tokens)
        assert reply.written.logprobs == pytest.approx(expected.tolist(), abs=1e-5)
        assert Constraint.loads(reply.written.grammar) == Constraint(finite.GRAMMAR, finite.MAX_TOKENS)
        assert reply.finish is Finish.END


def test_greedy_decoding_takes_the_likeliest_allowed_token(small: TransformersEngine) -> None:
    (reply,) = generate(small, asked(0.0))
    tokens, text = reply.written.tokens, ""
    with torch.no_grad():
        logits_TV = small.model(input_ids=torch.tensor([[2, 3, *tokens]])).logits[0, 1:-1]
    for logits_V, token in zip(logits_TV, tokens):
        assert token == max(finite.allowed_after(text), key=lambda each: float(logits_V[each]))
        text += small.decode((token,)) if token != finite.END else ""


def test_constrained_and_free_requests_share_a_batch(small: TransformersEngine) -> None:
    requests = [asked(1.0, seed) for seed in range(6)]
    requests += [replace(request, grammar=None) for request in requests]
    for together, request in zip(generate(small, *requests), requests):
        (alone,) = generate(small, request)
        assert together.written.tokens == alone.written.tokens
        assert bool(together.written.grammar) == (request.grammar is not None)


def test_models_without_packed_attention_are_constrained_too(small: TransformersEngine) -> None:
    padded = TransformersEngine(finite.model(), finite.tokenizer())
    padded._can_pack = False
    requests = [asked(1.0, seed) for seed in range(8)]
    assert [reply.text for reply in generate(padded, *requests)] == [reply.text for reply in generate(small, *requests)]


def test_a_trainer_computes_the_same_masks_again(small: TransformersEngine) -> None:
    for tokens in finite.completions():
        bits = small.grammar_masks.of(Constraint(finite.GRAMMAR, finite.MAX_TOKENS), tokens)
        allowed_TV = constrained.unpack_bits(bits, finite.END + 3, torch.device("cpu"))
        text = ""
        for allowed_V, token in zip(allowed_TV, tokens):
            assert allowed_V.nonzero()[:, 0].tolist() == finite.allowed_after(text)
            text += small.decode((token,)) if token != finite.END else ""


# --- records, caches, errors, servers -------------------------------------------------------------------------------


def test_a_grammar_is_part_of_a_request_and_of_the_record_only_where_there_is_one(small: TransformersEngine) -> None:
    free, bound = replace(asked(), grammar=None), asked()
    assert keys_of([free]) != keys_of([bound])
    assert keys_of([bound]) == keys_of([asked()])
    agent = make_agent("direct").playing(Play.of(Format.CONSTRAINED))
    for each, stored in ((agent, True), (make_agent("direct"), False)):
        settings = EpisodeConfig(sampling=replace(HOT, max_tokens=40))
        (outcome,) = Driver(shaped("nano")).run([partial(episode, each, QUESTION, settings, 0)])
        assert outcome.value is not None
        line = dumps(outcome.value)
        assert ('"grammar":' in line) == stored
        assert loads(line, Trajectory) == outcome.value


def test_without_llguidance_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    engine = TransformersEngine(finite.model(), finite.tokenizer())
    with pytest.raises(BackendDown, match=r"needs llguidance, which is not installed: .*constrained\]'"):
        engine.generate([asked()])
    assert generate(engine, replace(asked(), grammar=None))


def test_a_grammar_that_llguidance_cannot_read_is_an_error_of_one_line(small: TransformersEngine) -> None:
    with pytest.raises(BackendDown, match="llguidance cannot read the grammar: ") as caught:
        small.grammar_masks.compile("(?=never)")
    assert "\n" not in str(caught.value)


def test_every_kind_of_server_has_its_own_field() -> None:
    regex, gbnf = finite.GRAMMAR.regex(50), finite.GRAMMAR.gbnf(50)
    assert {name: fields(finite.GRAMMAR, 50) for name, fields in GRAMMAR_FIELDS.items()} == {
        "vllm": {"structured_outputs": {"regex": regex}},
        "vllm<0.12": {"guided_regex": regex},
        "sglang": {"regex": regex},
        "llama.cpp": {"grammar": gbnf},
    }
