"""Norms as one kernel: the same numbers, and only where they are the same."""

import copy
from typing import Any

import pytest
import torch
from transformers import Gemma2Config, GPT2Config, LlamaConfig, MistralConfig, PreTrainedModel, Qwen2Config, Qwen3Config

from stepladder.engines.paged.fused_norms import fuse_norms
from tests.support.random_models import HEADS, SMALL, random_model

IDS = torch.arange(5, 45)[None]


def made(config: Any, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    model: PreTrainedModel = random_model(config).to(dtype).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "norm" in name:
                weights.uniform_(0.5, 2.0)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("config", "norms"), [(LlamaConfig, 5), (Qwen2Config, 5), (MistralConfig, 5), (Qwen3Config, 9)]
)
def test_a_model_says_the_same_with_its_norms_fused(config: Any, norms: int, dtype: torch.dtype) -> None:
    model = made(config(**SMALL, **HEADS), dtype)
    with torch.no_grad():
        before = model(input_ids=IDS).logits.float()
        assert fuse_norms(model) == norms
        after = model(input_ids=IDS).logits.float()
    assert torch.allclose(after, before, atol=1e-5 if dtype is torch.float32 else 0.05)
    assert fuse_norms(model) == 0, "once is enough"


@pytest.mark.parametrize(
    "config",
    [Gemma2Config(**SMALL, **HEADS), GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2)],
    ids=["adds 1 to its weights", "has other norms"],
)
def test_norms_of_other_kinds_stay_as_they_are(config: Any) -> None:
    model = made(config)
    assert fuse_norms(model) == 0


def test_a_norm_that_only_looks_plain_stays_as_it_is() -> None:
    model = made(LlamaConfig(**SMALL, **HEADS))
    kind: Any = type(model.model.norm)

    class ScaledRMSNorm(kind):  # type: ignore[misc]
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = super().forward(hidden) * 1.5
            return found

    scaled = ScaledRMSNorm(16)
    model.model.norm = scaled
    assert fuse_norms(model) == 4
    assert "forward" not in vars(scaled)


def test_weights_that_are_changed_later_count_and_copies_are_on_their_own() -> None:
    model = made(LlamaConfig(**SMALL, **HEADS))
    fuse_norms(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        before = other(input_ids=IDS).logits.clone()
        model.model.norm.weight.mul_(2)
        assert torch.equal(other(input_ids=IDS).logits, before)
        assert torch.allclose(model(input_ids=IDS).logits, before * 2, atol=1e-5)
