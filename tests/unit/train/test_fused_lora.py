"""LoRA's layers in fewer kernels: the same numbers and the same gradients, and only where that is so."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from stepladder.agents import make_agent
from stepladder.core.requests import Sampling
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.explore.episode import EpisodeConfig
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.fused_lora import fuse_lora
from stepladder.train.loop.watched_trainer import WatchedTrainer
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.trainer import train_sft
from tests.support.samples import QUESTION

SHAPE = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
IDS = torch.arange(5, 65).view(3, 20)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
#: The linear layers of two layers.
PLAIN = 14


def made(config: Any = LlamaConfig, dtype: torch.dtype = torch.float32, **lora: Any) -> PeftModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SHAPE, **HEADS)).to(dtype)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    adapted = get_peft_model(model, PeftLoraConfig(**{**settings, **lora}))
    with torch.no_grad():
        for name, weights in adapted.named_parameters():
            if "lora_B" in name:
                weights.normal_(std=0.1)
            elif name.endswith("proj.base_layer.bias"):
                weights.normal_()
    assert isinstance(adapted, PeftModel)
    return adapted


def learnt(model: nn.Module, *, bf16: bool = False) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and the gradients of all that is trained."""
    model.zero_grad()
    device = next(model.parameters()).device
    ids = IDS.to(device)
    with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return float(loss.detach()), {
        name: weights.grad for name, weights in model.named_parameters() if weights.grad is not None
    }


def far(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """How far gradients are apart, as a share of them, where that is most."""
    assert ours.keys() == theirs.keys()
    assert all("lora_" in name for name in ours)
    return max(float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in theirs)


@pytest.mark.parametrize("config", [LlamaConfig, Qwen2Config, Qwen3Config])
def test_loss_and_gradients_are_those_of_peft(config: Any) -> None:
    theirs = made(config)
    ours = copy.deepcopy(theirs)
    assert fuse_lora(ours) == PLAIN
    assert fuse_lora(ours) == 0, "once is enough"
    (loss, gradients), (expected, wanted) = learnt(ours), learnt(theirs)
    assert loss == pytest.approx(expected, abs=1e-6)
    assert far(gradients, wanted) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["frozen fp32", "frozen bf16"])
@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_under_autocast_they_differ_by_what_bf16_rounds(config: Any, dtype: torch.dtype, device: str) -> None:
    theirs = made(config, dtype).to(device)
    ours = copy.deepcopy(theirs)
    assert fuse_norms(ours) > 0
    fuse_lora(ours)
    (loss, gradients), (expected, wanted) = learnt(ours, bf16=True), learnt(theirs, bf16=True)
    assert loss == pytest.approx(expected, abs=0.01)
    assert far(gradients, wanted) < 0.1
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}


def test_without_autocast_precisions_that_differ_are_left_to_peft() -> None:
    theirs = made(dtype=torch.bfloat16)
    ours = copy.deepcopy(theirs)
    fuse_lora(ours)
    with torch.no_grad():
        assert torch.equal(ours(input_ids=IDS).logits, theirs(input_ids=IDS).logits)


@pytest.mark.parametrize(
    "lora", [{"lora_dropout": 0.1}, {"use_dora": True}, {"lora_bias": True}], ids=["dropout", "DoRA", "with a bias"]
)
def test_what_is_not_plain_stays_as_it_is(lora: dict[str, Any]) -> None:
    assert fuse_lora(made(Qwen2Config, target_modules=["q_proj"], **lora)) == 0


def test_of_several_adapters_none_is_plain() -> None:
    model = made()
    model.add_adapter("other", model.peft_config["default"])
    assert fuse_lora(model) == 0


def test_what_comes_later_is_heeded() -> None:
    theirs = made()
    ours = copy.deepcopy(theirs)
    fuse_lora(ours)
    for model in (ours, theirs):
        with model.disable_adapter(), torch.no_grad():
            model.off = model(input_ids=IDS).logits
        model.merge_adapter()
        with torch.no_grad():
            model.merged = model(input_ids=IDS).logits
        model.unmerge_adapter()
    assert torch.equal(ours.off, theirs.off)
    assert torch.equal(ours.merged, theirs.merged)
    assert not torch.allclose(ours.off, ours.merged, atol=1e-3)
    for model in (ours, theirs):
        torch.manual_seed(1)
        model.add_adapter("other", PeftLoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
        model.set_adapter("other")
        with torch.no_grad():
            model.other = model(input_ids=IDS).logits
    assert torch.equal(ours.other, theirs.other)
    assert not torch.allclose(ours.other, ours.off, atol=1e-3)


def test_no_rows_are_no_trouble_and_hooks_are_heard() -> None:
    model = made()
    heard = []
    layer: Any = model.base_model.model.model.layers[0].self_attn.q_proj
    layer.lora_A["default"].register_forward_hook(lambda *_: heard.append(1))
    assert fuse_lora(model) == PLAIN - 1
    learnt(model)
    assert heard == [1]
    other: Any = model.base_model.model.model.layers[0].self_attn.k_proj
    assert other(torch.zeros(0, 3, 32)).shape == (0, 3, 16)


def test_a_training_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SFTConfig(epochs=3, batch=1, lr=1e-2, dev_questions=0, lora=LoraConfig(rank=4))

    def train(folder: Path) -> dict[str, torch.Tensor]:
        agent, episode = make_agent("direct"), EpisodeConfig(sampling=Sampling(max_tokens=20))
        report = train_sft(
            "tiny", agent, [QUESTION], (), None, episode, settings, folder, seed=0, device="cpu", watch=lambda _: None
        )
        return load_file(report.policy / "model.safetensors")

    expected = train(tmp_path / "peft")
    watch_over = WatchedTrainer.watch_over

    def fused(trainer: Any, *arguments: Any) -> None:
        watch_over(trainer, *arguments)
        assert fuse_norms(trainer.model) > 0
        assert fuse_lora(trainer.model) > 0

    monkeypatch.setattr(WatchedTrainer, "watch_over", fused)
    found = train(tmp_path / "fused")
    assert found.keys() == expected.keys()
    for name, weights in found.items():
        torch.testing.assert_close(weights, expected[name], rtol=1e-3, atol=1e-4)
