"""The vLLM engine on a stand-in for vLLM. On vLLM itself: tests/gpu."""

import os
import re
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
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
from stepladder.engines.transformers.token_sampler import Row
from stepladder.engines.vllm.engine import VLLMEngine
from stepladder.engines.vllm.sampled_tokens import SampledTokens
from stepladder.engines.vllm.settings import VLLMConfig, check_fits
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
    stand_in_vllm.install(monkeypatch)


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


def test_stop_strings_end_a_row_as_in_the_other_engine(engine: VLLMEngine, folder: Path) -> None:
    """vLLM never sees them: it decodes nothing, and is told to abort the row."""
    other = TransformersEngine(folder, device="cpu", dtype="fp32")
    texts = ("Who?", "Where is the tower?", "A")
    greedy = [prompt(text, sampling=Sampling(max_tokens=24)) for text in texts]
    unstopped = written(other, *greedy)
    stops = [(reply.text[9:11], "\x00never", reply.text[15:18]) for reply in unstopped]
    requests = [replace(each, stop=stop) for each, stop in zip(greedy, stops)]
    # One ends at its limit and with its stop string at once.
    limit = len(written(other, requests[0])[0].written.tokens)
    requests.append(replace(requests[0], sampling=Sampling(max_tokens=limit)))
    ours = written(engine, *requests)
    for found, expected in zip(ours, written(other, *requests)):
        assert (found.text, found.finish) == (expected.text, expected.finish)
        assert found.finish is Finish.STOP
        assert found.written.tokens == expected.written.tokens
        assert found.written.logprobs == pytest.approx(expected.written.logprobs, abs=1e-4)
    assert len(engine.llm.llm_engine.aborted) == 3
    assert not engine.llm.llm_engine.requests
    engine.reset_prefix_cache()  # the step that was begun for the aborted rows is taken in first
    assert not engine.llm.llm_engine.engine_core.engine_core.batch_queue
    assert engine.sampled_tokens is not None
    assert not engine.sampled_tokens.running


def test_vllm_decodes_no_text_and_makes_no_objects_of_log_probs(engine: VLLMEngine) -> None:
    session = engine.open_session()
    session.add({0: prompt("Who?", stop=("x",), sampling=Sampling(1.0, max_tokens=4))})
    (state,) = engine.llm.llm_engine.requests.values()
    assert (state["params"].detokenize, state["params"].stop) == (False, None)
    (reply,) = session.step().values()
    assert isinstance(reply, Generation)
    assert len(reply.written.logprobs) == len(reply.written.tokens)
    assert state["logprobs"] == []


def test_requests_of_others_keep_their_log_probs(engine: VLLMEngine) -> None:
    """Who uses `engine.llm` directly finds vLLM as it is."""
    vllm = engine.llm.llm_engine
    params = stand_in_vllm.SamplingParams(temperature=0, max_tokens=2, seed=None, logprobs=0, stop_token_ids=[])
    vllm.add_request("theirs", {"prompt_token_ids": [5, 6]}, params)
    (output,) = [each for _ in range(3) for each in vllm.step()]
    assert len(output.outputs[0].logprobs) == 2


def test_without_the_scheduler_in_this_process_vllm_matches_stop_strings(
    folder: Path, acting: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stand_in_vllm._Engine, "engine_core", property(lambda _: None, lambda *_: None), raising=False)
    monkeypatch.setattr(stand_in_vllm._Engine, "step", stand_in_vllm._Engine.step_at_once)
    engine = VLLMEngine(folder)
    assert engine.sampled_tokens is None
    assert "slower" in caplog.text
    check_engine(engine)


def test_rows_may_get_several_tokens_in_a_step() -> None:
    """As with speculative decoding: what follows the end of a stop string is dropped."""
    scheduler = SimpleNamespace(update_from_output=lambda _, model_output: model_output.outputs)
    stop_at = lambda row: Finish.STOP if row.tokens[-1] == 7 else None  # noqa: E731
    tokens = SampledTokens(scheduler, stop_at)
    first, second = (Row(name, (), [1], ("x",), Sampling(), 0, 9) for name in "ab")
    tokens.add("a", first, frozenset({7}))
    tokens.add("b", second, frozenset())
    outputs = [
        SimpleNamespace(request_id="a", new_token_ids=[5, 7, 6], finish_reason=None),
        SimpleNamespace(request_id="b", new_token_ids=[7], finish_reason="length"),
        SimpleNamespace(request_id="unknown", new_token_ids=[3], finish_reason=None),
    ]
    logprobs = SimpleNamespace(
        logprobs=np.array([[-0.5], [-1.0], [-2.0], [-4.0], [-8.0]]), cu_num_generated_tokens=[0, 1, 4]
    )
    places = {"unknown": 0, "a": 1, "b": 2}
    step = SimpleNamespace(logprobs=logprobs, req_id_to_index=places, outputs={0: SimpleNamespace(outputs=outputs)})
    scheduler.update_from_output(None, step)
    assert (first.tokens, first.logprobs) == ([5, 7], [-1.0, -2.0])
    assert (second.tokens, second.logprobs) == ([7], [-8.0])
    assert tokens.take_ended() == {"a": "", "b": "length"}
    assert tokens.take_ended() == {}


def test_logits_that_are_not_numbers_are_told(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.llm.llm_engine, "_sample_token", lambda *_: (5, float("nan")))
    (reply,) = engine.generate([prompt("Who?", sampling=Sampling(max_tokens=1))])
    assert "the model's logits are NaN" in str(reply)


# --- settings


def shape(heads: int = 12, groups: int = 2) -> Any:
    return SimpleNamespace(num_attention_heads=heads, num_key_value_heads=groups)


@pytest.mark.parametrize(
    ("settings", "gpus", "message"),
    [
        ({"max_model_len": 5000}, 1, "max_model_len 5,000 is more than the context of 'm', 4,096 tokens"),
        ({"tensor_parallel_size": 5}, 8, "5 does not divide the 12 attention heads of 'm': set one of 2, 3, 4, 6, 12"),
        ({"tensor_parallel_size": 3}, 8, "cannot share the 2 key-value heads"),
        ({"tensor_parallel_size": 4}, 2, "needs 4 GPUs, and 2 can be seen"),
        ({"tensor_parallel_size": 2}, 0, "needs 2 GPUs, and none can be seen"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], gpus: int, message: str) -> None:
    with pytest.raises(StepladderError, match=re.escape(message)):
        check_fits("m", shape(), VLLMConfig(**settings), 4096, gpus)
    check_fits("m", shape(), VLLMConfig(tensor_parallel_size=4, max_model_len=4096), 4096, 4)


def test_settings_reach_vllm(folder: Path, acting: None) -> None:
    engine = make_engine("vllm", None, model=str(folder), vllm={"max_model_len": 64, "gpu_memory_utilization": 0.5})
    assert isinstance(engine, VLLMEngine)
    arguments = engine.llm.arguments
    assert (arguments["max_model_len"], arguments["gpu_memory_utilization"]) == (64, 0.5)
    replies = engine.generate([prompt("x" * 64), prompt("x" * 60, sampling=Sampling(max_tokens=20))])
    assert isinstance(replies[0], BackendError)
    assert "a prompt of 64 tokens does not fit max_model_len 64: raise it" in str(replies[0])
    assert isinstance(replies[1], Generation)
    more = replace(prompt(""), context=(*replies[1].context, replies[1].written))
    (full,) = written(engine, more)
    assert full.finish is Finish.CONTEXT_FULL  # a transcript that has grown to the limit is no wrong setting


def test_a_model_that_vllm_cannot_load_names_the_settings(folder: Path, acting: None, monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("To serve at least one request with max seq len (40960), 5.6 GiB KV cache is needed.")

    monkeypatch.setattr(stand_in_vllm, "LLM", refuse)
    with pytest.raises(BackendDown, match=r"KV cache is needed\. Lower max_model_len, raise gpu_memory_utilization"):
        VLLMEngine(folder)


@pytest.mark.parametrize("reason", ["error", "abort"])
def test_a_request_that_vllm_gives_up_is_told(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """As it does with a grammar that its backend cannot compile."""
    monkeypatch.setattr(engine.llm.llm_engine.scheduler, "gives_up", reason)
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
    loose.submit_row(row)
    (asked,) = loose.llm.llm_engine.requests.values()
    assert asked["params"].seed is None
    strict = VLLMEngine(folder)
    strict.submit_row(strict.prepare({0: prompt("A", sampling=Sampling(temperature=1.0), seed=2**63 + 5)})[0][0])
    strict.submit_row(strict.prepare({0: prompt("A", seed=5)})[0][0])
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


def test_of_a_policy_with_lora_only_what_training_changes_is_sent_again() -> None:
    adapted = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", r=4))
    names = [name for name, _ in merged_weights(adapted, trained_only=True)]
    assert names
    assert all(name.endswith("q_proj.weight") for name in names)
    whole = tiny_model()
    assert [name for name, _ in merged_weights(whole, trained_only=True)] == [name for name, _ in merged_weights(whole)]


def test_a_model_on_several_gpus_takes_no_weights_of_a_trainer(engine: VLLMEngine) -> None:
    engine.tensor_parallel_size = 2
    with pytest.raises(StepladderError, match="tensor_parallel_size above 1"):
        engine.load_weights([])


def test_the_cache_cannot_be_dropped_while_something_is_written(engine: VLLMEngine) -> None:
    session = engine.open_session()
    session.add({0: prompt("A", sampling=Sampling(max_tokens=6)), 1: prompt("B", sampling=Sampling(max_tokens=1))})
    assert list(session.step()) == [1]
    with pytest.raises(BackendDown, match="still has running requests"):
        engine.reset_prefix_cache()
    assert list(session.step()) == [0]


def test_adapters_are_changed_without_a_restart(tmp_path: Path, folder: Path, acting: None) -> None:
    small = get_peft_model(tiny_model(), LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM", r=12))
    small.peft_config["default"].base_model_name_or_path = str(folder)
    small.save_pretrained(tmp_path / "adapter")
    adapted = VLLMEngine(tmp_path / "adapter")  # by itself, it names its model
    arguments = adapted.llm.arguments
    assert (arguments["enable_lora"], arguments["max_lora_rank"]) == (True, 16)  # vLLM knows no 12

    def used() -> str | None:
        adapted.submit_row(adapted.prepare({0: prompt("A")})[0][0])
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


def test_a_closed_engine_leaves_nothing_behind(folder: Path, acting: None) -> None:
    engine = VLLMEngine(folder)
    held = weakref.ref(engine.llm)
    stand_in_vllm.Platform._global_graph_pool = object()
    engine.close()
    assert held() is None
    assert stand_in_vllm.Platform._global_graph_pool is None  # torch refuses to capture into it again
    # A training afterwards would otherwise join torch's process group.
    assert stand_in_vllm.ended_groups == ["destroy_model_parallel", "destroy_distributed_environment"]


def test_where_vllm_is_missing_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(StepladderError, match=r"pip install .*\[vllm\]'"):
        make_engine("vllm", None, model="nano")  # type: ignore[arg-type]
