"""Weights rounded to bf16 by chance: small changes stay, what bf16 can hold is not touched."""

import copy
import math
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig, get_peft_model
from torch import nn

from stepladder.models import stochastic_rounding as rounding
from stepladder.models.loading import load_model
from stepladder.models.stochastic_rounding import cast_model, stochastic_round
from stepladder.models.tiny import tiny_model, tiny_tokenizer
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.policy_weights import load_policy, write_policy
from stepladder.train.loop.rollout_engine import copy_weights, merged_weights


def grid(count: int) -> torch.Tensor:
    """Weights that bf16 can hold."""
    return torch.randn(count, generator=torch.Generator().manual_seed(0)).bfloat16().float()


def test_what_bf16_can_hold_stays() -> None:
    weights = torch.cat([grid(1000), torch.tensor([0.0, -0.0, 1e-40, 3.0e38])]).bfloat16().float()
    assert torch.equal(stochastic_round(weights, torch.bfloat16, "a").float(), weights)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_change_smaller_than_a_step_stays_on_average(share: float, sign: int) -> None:
    weights = torch.full((100_000,), 0.2 * sign).bfloat16().float()
    step = 2**-10  # between neighbours at 0.2
    result = stochastic_round(weights + share * step, torch.bfloat16, "a").float()
    moved = (result - weights) / step
    assert set(moved.unique().tolist()) == {0.0, 1.0}
    assert moved.mean().item() == pytest.approx(share, abs=0.01)
    if share < 0.5:
        assert torch.equal((weights + share * step).bfloat16().float(), weights)  # to the nearest, nothing stays


def test_the_same_name_is_rounded_the_same_way_in_whatever_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.rand(50, 20, generator=torch.Generator().manual_seed(1))
    whole = stochastic_round(weights, torch.bfloat16, "a")
    monkeypatch.setattr(rounding, "_CHUNK", 7)
    assert torch.equal(stochastic_round(weights, torch.bfloat16, "a"), whole)
    assert torch.equal(stochastic_round(weights.T.contiguous().T, torch.bfloat16, "a"), whole)
    assert not torch.equal(stochastic_round(weights, torch.bfloat16, "b"), whole)


def test_what_is_no_number_stays() -> None:
    weights = torch.tensor([math.nan, math.inf, -math.inf])
    weights = torch.cat([weights, torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)])
    assert torch.equal(
        stochastic_round(weights, torch.bfloat16, "a").isnan(), torch.tensor([True, False, False, True, True])
    )
    assert stochastic_round(weights, torch.bfloat16, "a")[1:3].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_to_other_precisions_it_is_the_nearest(dtype: torch.dtype) -> None:
    weights = torch.rand(100)
    assert torch.equal(stochastic_round(weights, dtype, "a"), weights.to(dtype))


def test_a_model_that_has_learnt_little_does_not_forget_it() -> None:
    """Twenty updates with a small learning rate: rounded to the nearest, most of it would be lost."""
    torch.manual_seed(0)
    base = tiny_model(hidden_size=128, intermediate_size=256)
    for weight in base.parameters():
        weight.data = weight.bfloat16().float()
    tokens = torch.randint(256, (4, 32))

    def loss(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return model(tokens, labels=tokens).loss.item()  # type: ignore[no-any-return]

    trained = get_peft_model(copy.deepcopy(base), PeftLoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    learning = torch.optim.AdamW([each for each in trained.parameters() if each.requires_grad], lr=1e-5)
    for _ in range(20):
        trained(tokens, labels=tokens).loss.backward()
        learning.step()
        learning.zero_grad()
    exact = trained.merge_and_unload()  # type: ignore[operator]
    gain = loss(base) - loss(exact)
    nearest = copy.deepcopy(exact).to(torch.bfloat16).float()
    by_chance = copy.deepcopy(exact)
    cast_model(by_chance, torch.bfloat16)
    by_chance.float()
    assert loss(base) - loss(nearest) < 0.6 * gain
    assert 0.8 * gain < loss(base) - loss(by_chance) < 1.2 * gain


def test_the_copy_that_plays_has_the_weights_that_are_written(tmp_path: Path) -> None:
    tiny_model().bfloat16().save_pretrained(tmp_path / "base")
    tiny_tokenizer().save_pretrained(tmp_path / "base")
    policy = load_policy(tmp_path / "base", LoraConfig(r=4, lora_alpha=8), bf16=True, device=torch.device("cpu"))
    for name, weight in policy.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=1e-4)
    copied, _ = load_model(tmp_path / "base", None, torch.bfloat16)
    before = {name: weight.clone() for name, weight in copied.named_parameters()}
    copy_weights(copied, merged_weights(policy.model))
    policy.model.save_pretrained(tmp_path / "checkpoint")
    write_policy(tmp_path / "policy", policy, tmp_path / "checkpoint", torch.bfloat16)
    written, _ = load_model(tmp_path / "policy", None, None)
    for (name, ours), (_, theirs) in zip(copied.named_parameters(), written.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert any(not torch.equal(weight, before[name]) for name, weight in copied.named_parameters())


def test_embeddings_that_are_the_output_layer_too_stay_one() -> None:
    model = tiny_model()
    cast_model(model, torch.bfloat16)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}
