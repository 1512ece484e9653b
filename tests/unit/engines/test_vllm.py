"""The vLLM engine on a stand-in for vLLM. On vLLM itself: tests/gpu."""

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.grammars.grammar import Constraint, Grammar, Text
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.engines import make_engine
from stepladder.engines.base import check_engine
from stepladder.engines.transformers.constrained import unpack_bits
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.vllm import VLLMEngine
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.train.loop.rollout_engine import merged_weights
from tests.support import stand_in_vllm
from tests.support.vllm_requests import prompt, written


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


@pytest.fixture
def acting(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters, requests = ModuleType("vllm.lora"), ModuleType("vllm.lora.request")
    requests.LoRARequest = stand_in_vllm.LoRARequest  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", stand_in_vllm)
    monkeypatch.setitem(sys.modules, "vllm.lora", adapters)
    monkeypatch.setitem(sys.modules, "vllm.lora.request", requests)


@pytest.fixture
def engine(folder: Path, acting: None) -> VLLMEngine:
    return VLLMEngine(folder)


def test_it_keeps_the_contract(engine: VLLMEngine) -> None:
    check_engine(engine)


def test_it_writes_what_transformers_writes(engine: VLLMEngine, folder: Path) -> None:
    requests = [prompt(text, sampling=Sampling(max_tokens=16)) for text in ("Who?", "Where is the tower?")]
    theirs = written(TransformersEngine(folder, device="cpu", dtype="fp32"), *requests)
    for ours, other in zip(written(engine, *requests), theirs):
        assert ours.written.tokens == other.written.tokens
        assert ours.context == other.context
        assert ours.written.logprobs == pytest.approx(other.written.logprobs, abs=1e-4)


def test_a_grammar_is_left_to_vllm_as_a_regular_expression(engine: VLLMEngine, folder: Path) -> None:
    """Texts are limited in characters. A trainer computes the same log-probs from what is stored."""
    grammar = Grammar((("<a>", Text(), "</a>"), ("<b>", Text(), "</b>")))
    requests = [
        prompt("Who?", stop=("</a>", "</b>"), sampling=Sampling(1.0, max_tokens=60), seed=seed, grammar=grammar)
        for seed in range(4)
    ]
    theirs = TransformersEngine(folder, device="cpu", dtype="fp32")
    for reply in written(engine, *requests):
        constraint = Constraint.loads(reply.written.grammar)
        assert constraint == Constraint(grammar, 60, "characters")
        finished = reply.finish is Finish.STOP
        assert finished == bool(re.fullmatch(grammar.regex(60), reply.text)), "random bytes may reach the token limit"
        tokens = reply.written.tokens
        bits = theirs.grammar_masks.of(constraint, tokens)
        ids = torch.tensor([[*reply.context[0].tokens, *tokens]])
        with torch.no_grad():
            logits_TV = theirs.model(input_ids=ids).logits[0, -len(tokens) - 1 : -1]
        allowed_TV = unpack_bits(bits, logits_TV.shape[1], logits_TV.device)
        logps_TV = logits_TV.masked_fill(~allowed_TV, -torch.inf).log_softmax(-1)
        expected = logps_TV.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert reply.written.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    assert not written(engine, prompt("Who?", sampling=Sampling(max_tokens=4)))[0].written.grammar


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_request_that_vllm_gives_up_is_told(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """As it does with a grammar that its backend cannot compile."""
    step = engine.llm.llm_engine.step

    def give_up() -> list[Any]:
        outputs = step()
        for output in outputs:
            output.finished = True
            output.outputs = [SimpleNamespace(token_ids=[], logprobs=[], finish_reason=reason)]
        return list(outputs)

    monkeypatch.setattr(engine.llm.llm_engine, "step", give_up)
    (reply,) = engine.generate([prompt("Who?", sampling=Sampling(max_tokens=2))])
    assert isinstance(reply, BackendError)
    assert reason in str(reply)
    with pytest.raises(BackendDown, match=r"cannot compile the grammar .*; use lenient"):
        engine.generate([replace(prompt("Who?"), grammar=Grammar((("<a>", Text(), "</a>"),)))])


def test_a_grammar_that_vllm_refuses_is_told(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Grammar, "regex", lambda *_: "(?=x)x")
    with pytest.raises(BackendDown, match=r"vLLM refuses the grammar .*lookaheads.*; use lenient"):
        engine.generate([prompt("Who?", grammar=Grammar((("x",),)))])


def test_a_full_window_and_an_empty_context_are_told_apart(engine: VLLMEngine) -> None:
    full = prompt("x" * (engine.context_limit + 1))
    almost = prompt("x" * (engine.context_limit - 2), sampling=Sampling(max_tokens=20))
    replies = engine.generate([full, Generate(()), almost])
    assert isinstance(replies[0], Generation)
    assert replies[0].finish is Finish.CONTEXT_FULL
    assert isinstance(replies[1], BackendError)
    assert isinstance(replies[2], Generation)
    assert len(replies[2].written.tokens) <= 2


def test_requests_join_others_that_are_under_way(engine: VLLMEngine) -> None:
    session = engine.open_session()
    session.add({"long": prompt("A", sampling=Sampling(max_tokens=12))})
    session.add({"short": prompt("B", sampling=Sampling(max_tokens=2))})
    assert list(session.step()) == ["short"]
    session.add({"late": prompt("C", sampling=Sampling(max_tokens=1))})
    assert list(session.step()) == ["late"]
    assert list(session.step()) == ["long"]
    assert session.step() == {}


def test_greedy_requests_and_unseeded_engines_ask_for_no_seed(folder: Path, acting: None) -> None:
    loose = VLLMEngine(folder, seeded=False)
    row = loose.prepare({0: prompt("A", sampling=Sampling(temperature=1.0), seed=5)})[0][0]
    loose._submit(row)
    assert loose.llm.llm_engine.requests["1"]["params"].seed is None
    strict = VLLMEngine(folder)
    strict._submit(strict.prepare({0: prompt("A", sampling=Sampling(temperature=1.0), seed=2**63 + 5)})[0][0])
    strict._submit(strict.prepare({0: prompt("A", seed=5)})[0][0])
    assert [each["params"].seed for each in strict.llm.llm_engine.requests.values()] == [5, None]


@pytest.mark.parametrize("rank", [None, 8])
def test_it_takes_the_weights_of_a_trainer(folder: Path, acting: None, rank: int | None) -> None:
    engine = VLLMEngine(folder, max_lora_rank=rank)  # with room for adapters, layers have something around them
    trained = tiny_model()
    with torch.no_grad():
        for weight in trained.parameters():
            weight.mul_(1.5)
    request = prompt("Where?", sampling=Sampling(max_tokens=12))
    expected = written(TransformersEngine(trained, tiny_tokenizer()), request)[0].written
    assert written(engine, request)[0].written.logprobs != pytest.approx(expected.logprobs, abs=1e-4)
    engine.load_weights(merged_weights(trained))
    found = written(engine, request)[0].written
    assert found.tokens == expected.tokens
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert engine.llm.llm_engine.resets == 1  # what was kept is of no use any more


def test_weights_with_lora_are_those_of_the_merged_model() -> None:
    adapted = get_peft_model(tiny_model(), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=4))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    found = {name: weight.clone() for name, weight in merged_weights(adapted)}
    merged = dict(adapted.merge_and_unload().named_parameters())
    assert found.keys() == merged.keys()
    assert all(torch.allclose(found[name], merged[name], atol=1e-6) for name in merged)


def test_the_cache_cannot_be_dropped_while_something_is_written(engine: VLLMEngine) -> None:
    engine.open_session().add({0: prompt("A")})
    with pytest.raises(BackendDown, match="still has running requests"):
        engine.reset_prefix_cache()


def test_adapters_are_changed_without_a_restart(tmp_path: Path, folder: Path, acting: None) -> None:
    small = get_peft_model(tiny_model(), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=12))
    small.peft_config["default"].base_model_name_or_path = str(folder)
    small.save_pretrained(tmp_path / "adapter")
    adapted = VLLMEngine(tmp_path / "adapter")  # by itself, it names its model
    arguments = adapted.llm.arguments
    assert (arguments["enable_lora"], arguments["max_lora_rank"]) == (True, 16)  # vLLM knows no 12

    def used() -> str | None:
        adapted._submit(adapted.prepare({0: prompt("A")})[0][0])
        adapter = list(adapted.llm.llm_engine.requests.values())[-1]["lora"]
        return adapter and adapter.lora_path

    assert used() == str(tmp_path / "adapter")
    first = adapted._lora_request
    adapted.use_adapter(None)
    assert used() is None
    (tmp_path / "other" / "adapter").mkdir(parents=True)
    adapted.use_adapter(tmp_path / "other" / "adapter")
    assert used() == str(tmp_path / "other" / "adapter")
    assert adapted._lora_request.lora_int_id == 2
    assert adapted._lora_request.lora_name != first.lora_name  # vLLM keeps what it has read by that name
    adapted.use_adapter(tmp_path / "adapter")
    assert (adapted._lora_request.lora_int_id, adapted._lora_request.lora_name) == (1, first.lora_name)
    os.utime(tmp_path / "adapter" / "adapter_model.safetensors", ns=(1, 1))  # new weights in the same folder
    adapted.use_adapter(tmp_path / "adapter")
    assert adapted._lora_request.lora_int_id == 3


def test_where_vllm_is_missing_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(StepladderError, match=r"pip install .*\[vllm\]'"):
        make_engine("vllm", None, model="nano")  # type: ignore[arg-type]
