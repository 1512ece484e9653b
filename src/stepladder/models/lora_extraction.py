"""LoRA extraction: turn the weight difference between a trained model and its base into an adapter.

In: a trained model, its base model, a rank. Out: an adapter folder in peft's format that names the base model: for each
linear layer, the best approximation of its difference by matrices of that rank (truncated SVD). LoRA training is
recovered in full, up to bf16 rounding, if the rank is at least the sum of the ranks of all stages; full fine-tuning is
approximated.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.models.adapters import AGENT_FILE

_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"


@dataclass(frozen=True, slots=True)
class LoRAExtraction:
    """The result of an extraction."""

    folder: Path
    #: Changed layers, and the share of their squared difference that the adapter captures.
    layers: int
    kept: float
    #: Changed weights that LoRA cannot represent, such as embeddings, and their share of the total squared difference.
    left_out: int
    lost: float
    #: Size of the adapter's weights.
    bytes: int


def extract_lora(
    trained: Any, base: Any, name: str, tokenizer: Any, rank: int, folder: Path, agent: str | None = None
) -> LoRAExtraction:
    """Write an adapter that turns `base` (named `name`) into an approximation of `trained`, with its agent's name."""
    matrices: dict[str, torch.Tensor] = {}
    layers: list[str] = []
    change = kept = elsewhere = 0.0
    left_out = 0
    linear = {f"{module}.weight" for module, layer in base.named_modules() if isinstance(layer, nn.Linear)}
    tied = {f"{module}.weight" for module, layer in base.named_modules() if isinstance(layer, nn.Embedding)}
    for parameter, delta in _deltas(trained, base):
        size = float(delta.square().sum())
        if parameter in linear - tied:
            up, down = _factors(delta, rank)
            module = parameter.removesuffix(".weight")
            layers.append(module)
            matrices[f"base_model.model.{module}.lora_A.weight"] = down
            matrices[f"base_model.model.{module}.lora_B.weight"] = up
            change, kept = change + size, kept + size - float((delta - up.float() @ down.float()).square().sum())
        else:
            left_out, elsewhere = left_out + 1, elsewhere + size
    if not layers:
        raise StepladderError(f"no linear layer differs from '{name}': there is nothing to extract")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name,
        "r": rank,
        "lora_alpha": rank,  # scaling 1
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": layers,
        "inference_mode": True,
    }
    with atomic_folder(folder, what="adapter") as fresh:
        save_file(matrices, fresh / _WEIGHTS, metadata={"format": "pt"})
        (fresh / _CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        if agent is not None:
            (fresh / AGENT_FILE).write_text(json.dumps({"agent": agent}) + "\n", encoding="utf-8")
        tokenizer.save_pretrained(fresh)
    size_of = sum(matrix.nbytes for matrix in matrices.values())
    return LoRAExtraction(folder, len(layers), kept / change, left_out, elsewhere / (change + elsewhere), size_of)


def _deltas(trained: Any, base: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The nonzero weight differences, by parameter name."""
    after, before = dict(trained.named_parameters()), dict(base.named_parameters())
    if after.keys() != before.keys() or any(after[name].shape != before[name].shape for name in after):
        raise StepladderError("the two models do not have the same shapes: one was not trained from the other")
    for name, weights in after.items():
        delta = weights.detach().float() - before[name].detach().float()
        if delta.any():
            yield name, delta


def _factors(delta: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two matrices of this rank whose product is closest to the difference."""
    left, sizes, right = torch.linalg.svd(delta, full_matrices=False)
    root = sizes[:rank].sqrt()
    up, down = left[:, :rank] * root, root[:, None] * right[:rank]
    if len(root) < rank:  # a layer smaller than the rank: pad with zeros
        up = torch.cat([up, up.new_zeros(len(up), rank - len(root))], dim=1)
        down = torch.cat([down, down.new_zeros(rank - len(root), down.shape[1])])
    return up.to(torch.bfloat16).contiguous(), down.to(torch.bfloat16).contiguous()
