"""LoRA's layers in fewer kernels: the same numbers and the same gradients, and only where that is so."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig
from safetensors.torch import load_file
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from stepladder.agents import make_agent
from stepladder.core.requests import Sampling
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.explore.episode import EpisodeConfig
from stepladder.train.loop.base_trainer import BaseTrainer
from stepladder.train.loop.config import LoraConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.fused_lora import fuse_lora
from stepladder.train.sft.config import SFTConfig
from stepladder.train.sft.trainer import train_sft
from tests.support.lora_models import IDS, check_autocast, far, learnt, made
from tests.support.samples import QUESTION

#: The linear layers of two layers.
PLAIN = 14


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
def test_under_autocast_they_differ_by_what_bf16_rounds(config: Any, dtype: torch.dtype) -> None:
    check_autocast(config, dtype, "cpu")


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
    settings = SFTConfig(num_train_epochs=3, batch_size=1, learning_rate=1e-2, dev_questions=0, lora=LoraConfig(r=4))

    def train(folder: Path) -> dict[str, torch.Tensor]:
        agent, episode = make_agent("direct"), EpisodeConfig(sampling=Sampling(max_tokens=20))
        context = TrainingContext(agent, [QUESTION], (), None, episode, folder, device="cpu", watch=lambda _: None)
        report = train_sft("tiny", context, settings)
        return load_file(report.policy / "model.safetensors")

    expected = train(tmp_path / "peft")
    attach = BaseTrainer.attach

    def fused(trainer: Any, *arguments: Any) -> None:
        attach(trainer, *arguments)
        assert fuse_norms(trainer.model) > 0
        assert fuse_lora(trainer.model) > 0

    monkeypatch.setattr(BaseTrainer, "attach", fused)
    found = train(tmp_path / "fused")
    assert found.keys() == expected.keys()
    for name, weights in found.items():
        torch.testing.assert_close(weights, expected[name], rtol=1e-3, atol=1e-4)
