"""A pass with fewer kernels: the same logits, keys and values as the model's own; and only where there is one."""

import copy
import math
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GraniteConfig,
    LlamaConfig,
    Ministral3Config,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from stepladder.engines.paged import cuda_graphs as passes
from stepladder.engines.paged.cuda_graphs import GraphRunner
from stepladder.engines.paged.fused_decode import FusedDecoder, prepare_for_decoding
from stepladder.engines.paged.kv_cache import PAGE_SIZE, PagedAttentionBatch, PagedKVCache, kv_bytes_per_token
from stepladder.engines.transformers.packed_attention import forward_packed, use_packed_attention
from stepladder.train.loop.rollout_engine import copy_weights

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = {"vocab_size": 300, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
KINDS = [LlamaConfig, Qwen2Config, MistralConfig, Qwen3Config]
#: Tokens that rows have read before the pass.
LENGTHS = (3, 17, 40)


def made(config: Any, **more: Any) -> PreTrainedModel:
    if config is MistralConfig:
        more["sliding_window"] = None
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config(**SMALL, **HEADS, **more)).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            weights.uniform_(0.5, 2.0) if "norm" in name else weights.normal_(0, 0.2)
    return model.to(DEVICE)


class Rows:
    """Rows that have read some tokens, and are about to read one more each."""

    def __init__(self, model: Any) -> None:
        self.model = model
        a_token = kv_bytes_per_token(model.config, model.dtype)
        self.store = PagedKVCache(torch.device(DEVICE), a_token, 400 * a_token, None)
        self.pages = [self.store.allocate(5) for _ in LENGTHS]
        self.table = torch.tensor(self.pages, device=DEVICE)
        generator = torch.Generator().manual_seed(1)
        self.contexts = [torch.randint(5, 299, (length,), generator=generator) for length in LENGTHS]
        self.tokens = torch.tensor([7, 8, 9], device=DEVICE)
        with torch.inference_mode(), use_packed_attention(model):
            for row, context in enumerate(self.contexts):
                reading = self._reading([row], torch.arange(len(context)), len(context))
                forward_packed(model, context.to(DEVICE), [reading], 0)

    def _reading(self, rows: list[int], positions: torch.Tensor, width: int) -> PagedAttentionBatch:
        return PagedAttentionBatch(
            rows=len(rows),
            rows_M=torch.arange(len(rows), device=DEVICE).repeat_interleave(width),
            positions_M=positions.to(DEVICE),
            columns=int(positions.max()) + 1,
            max_query_len=width,
            cache=self.store,
            table_RP=self.table[rows],
        )

    def next(self) -> PagedAttentionBatch:
        return self._reading([0, 1, 2], torch.tensor(LENGTHS), 1)

    @torch.inference_mode()
    def written(self) -> list[torch.Tensor]:
        """The keys and values of the last tokens, by layer."""
        found = []
        for layer in range(self.model.config.num_hidden_layers):
            for buffer in self.store.layer(layer):
                for row, length in enumerate(LENGTHS):
                    place = buffer[self.pages[row][length // PAGE_SIZE], :, length % PAGE_SIZE]
                    found.append(place.clone())
                    place.zero_()
        return found

    @torch.inference_mode()
    def both(self) -> None:
        """What the model says and writes, and what the lean pass does."""
        lean = FusedDecoder.for_model(self.model)
        assert lean is not None
        with use_packed_attention(self.model):
            theirs = forward_packed(self.model, self.tokens, [self.next()], 0)
        written = self.written()
        ours = lean.run(self.tokens, self.next())
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        for mine, other in zip(self.written(), written):
            assert other.abs().max() > 0
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("config", KINDS)
def test_it_says_and_writes_what_the_model_does(config: Any, together: bool) -> None:
    model = made(config)
    if together:
        prepare_for_decoding(model)
    Rows(model).both()


@pytest.mark.parametrize("config", KINDS)
def test_weights_that_lie_together_are_the_same_weights(config: Any) -> None:
    model = made(config)
    before = {name: weights.clone() for name, weights in model.named_parameters()}
    prepare_for_decoding(model)
    lean = FusedDecoder.for_model(model)
    assert lean is not None
    assert all(layer.qkv_proj.weight is not None for layer in lean.layers)
    assert all(layer.gate_up_proj.weight is not None for layer in lean.layers)
    assert all(torch.equal(weights, before[name]) for name, weights in model.named_parameters())
    # New values are put where the old ones lie.
    other = {name: torch.randn_like(weights) * 0.2 for name, weights in before.items()}
    copy_weights(model, other.items())
    Rows(model).both()


def test_weights_elsewhere_are_multiplied_one_by_one() -> None:
    lean = FusedDecoder.for_model(made(LlamaConfig))
    assert lean is not None
    assert lean.layers[0].qkv_proj.weight is None


def test_models_that_are_built_in_another_way_have_none() -> None:
    small = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2}
    others = [
        AutoModelForCausalLM.from_config(Gemma2Config(**small, head_dim=16)),
        # The same parts, but sums are scaled, or some layers know no positions, or queries grow with theirs.
        made(GraniteConfig),
        made(SmolLM3Config, pad_token_id=0),
        made(Ministral3Config),
        AutoModelForCausalLM.from_config(GPT2Config(vocab_size=300, n_embd=48, n_layer=2, n_head=4)),
        made(LlamaConfig, hidden_act="gelu"),
        get_peft_model(made(LlamaConfig), LoraConfig(target_modules=["q_proj"])),
        nn.Sequential(made(LlamaConfig)),
    ]
    heard = made(LlamaConfig)
    heard.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    wrapped = made(LlamaConfig)
    wrapped.forward = wrapped.forward
    mixed = made(LlamaConfig)
    mixed.lm_head.to(torch.float16)
    for model in (*others, heard, wrapped, mixed):
        assert FusedDecoder.for_model(model) is None
        prepare_for_decoding(copy.deepcopy(model))  # does no harm
    with torch.autocast(DEVICE, torch.bfloat16):
        assert FusedDecoder.for_model(made(LlamaConfig)) is None


def wrong(_: FusedDecoder, tokens: torch.Tensor, __: PagedAttentionBatch) -> torch.Tensor:
    return torch.full((len(tokens), 300), 7.0, device=DEVICE)


def no_room(_: FusedDecoder, tokens: torch.Tensor, reading: PagedAttentionBatch) -> torch.Tensor:
    """Fails when it has written other keys and values."""
    key, value = (torch.ones(len(tokens), 2, 16, device=DEVICE) for _ in range(2))
    reading.write(0, 2, key, value)
    raise torch.OutOfMemoryError


class Unrecorded:
    """In place of a CUDA graph, of which the first so many cannot be made."""

    def __init__(self, fails: int) -> None:
        self.fails, self.tried = fails, list[bool]()

    def record(self, found: Any, model: Any, logits_BV: torch.Tensor, _: Any) -> None:
        self.tried.append(found.fused is not None)
        if len(self.tried) <= self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        found.graph = self
        self.replay = lambda: logits_BV[: found.rows].copy_(found.run_selected(model))


@pytest.mark.parametrize(
    ("run", "fails", "tried", "lean", "told"),
    [
        (FusedDecoder.run, 0, [True], True, ""),
        (wrong, 0, [False], False, "its logits differ by"),
        (no_room, 0, [False], True, ""),
        (FusedDecoder.run, 1, [True, False], False, "not permitted"),
    ],
    ids=["the same logits", "others", "no memory", "cannot be recorded"],
)
def test_a_pool_takes_it_where_it_leaves_the_same_logits(
    run: Any,
    fails: int,
    tried: list[bool],
    lean: bool,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = made(LlamaConfig)
    rows, graph = Rows(model), Unrecorded(fails)
    monkeypatch.setattr(FusedDecoder, "run", run)
    monkeypatch.setattr(passes._DecodePass, "capture", lambda *given: graph.record(*given))
    pool = GraphRunner(rows.store)
    pool.reset(model)
    pool.capture_enabled, pool._fused = True, FusedDecoder.for_model(model)
    pool.set_rows(0, rows.pages, [length - 1 for length in LENGTHS])
    with torch.inference_mode(), use_packed_attention(model):
        theirs = forward_packed(model, rows.tokens, [rows.next()], 0)
        written = rows.written()
        ours = pool.decode(model, rows.tokens, max(LENGTHS))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
        for mine, other in zip(rows.written(), written):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
    assert graph.tried == tried
    assert (pool._fused is not None) is lean
    assert pool.capture_enabled
    assert pool._graphs
    assert [told in each.message for each in caplog.records] == ([] if lean else [True])


@pytest.mark.parametrize(
    ("likely", "unlikely", "alike"),
    [(0, 0, True), (0, -1.3, True), (0.3, 0, True), (1.3, 0, False), (0, -5, False), (math.nan, 0, False)],
)
def test_rounding_is_no_reason_to_refuse_it_unless_other_words_are_drawn(
    likely: float, unlikely: float, alike: bool
) -> None:
    logits_BV = torch.tensor([[40.0, 39.5, 39.0, 10.0], [30.0, 20.0, 10.0, 0.0]])
    again_BV = logits_BV.clone()
    again_BV[0, 1] += likely
    again_BV[0, 3] += unlikely
    assert (passes._mismatch(logits_BV, again_BV) is None) is alike
