"""Small models with LoRA adapters, and their gradients."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftLoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.train.loop.fused_lora import fuse_lora

SHAPE = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
IDS = torch.arange(5, 65).view(3, 20)


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


def check_autocast(config: Any, dtype: torch.dtype, device: str) -> None:
    """Under autocast, loss and gradients of fused layers differ from PEFT's by what bf16 rounds."""
    theirs = made(config, dtype).to(device)
    ours = copy.deepcopy(theirs)
    assert fuse_norms(ours) > 0
    fuse_lora(ours)
    (loss, gradients), (expected, wanted) = learnt(ours, bf16=True), learnt(theirs, bf16=True)
    assert loss == pytest.approx(expected, abs=0.01)
    assert far(gradients, wanted) < 0.1
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float32}
