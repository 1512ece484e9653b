"""What training has changed in a model, as an adapter small enough to be sent and kept.

In: a trained model, the one it began with, a rank. Out: a folder as peft writes it, which names the model it belongs
to: of every linear layer the best approximation of its change with matrices of that rank. What LoRA has learnt is kept
as a whole when the rank is as large as those of all stages together, up to what rounding to bf16 has added; of what
full training has learnt, the most of it.
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
    """What became of a change."""

    folder: Path
    #: Layers that were changed, and the share of their change (its squared size) that the adapter has.
    layers: int
    kept: float
    #: Changed weights that no adapter of this kind can have, such as embeddings, and their share of the whole change.
    left_out: int
    lost: float
    #: Of the adapter's weights.
    bytes: int


def extract_lora(
    trained: Any, base: Any, name: str, tokenizer: Any, rank: int, folder: Path, agent: str | None = None
) -> LoRAExtraction:
    """Write the adapter that makes `base`, known by this name, about as good as `trained`, and which agent that is."""
    matrices: dict[str, torch.Tensor] = {}
    layers: list[str] = []
    change = kept = elsewhere = 0.0
    left_out = 0
    linear = {f"{place}.weight" for place, layer in base.named_modules() if isinstance(layer, nn.Linear)}
    tied = {f"{place}.weight" for place, layer in base.named_modules() if isinstance(layer, nn.Embedding)}
    for place, delta in _deltas(trained, base):
        size = float(delta.square().sum())
        if place in linear - tied:
            up, down = _factors(delta, rank)
            owner = place.removesuffix(".weight")
            layers.append(owner)
            matrices[f"base_model.model.{owner}.lora_A.weight"] = down
            matrices[f"base_model.model.{owner}.lora_B.weight"] = up
            change, kept = change + size, kept + size - float((delta - up.float() @ down.float()).square().sum())
        else:
            left_out, elsewhere = left_out + 1, elsewhere + size
    if not layers:
        raise StepladderError(f"no linear layer differs from '{name}': there is nothing that an adapter could hold")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": name,
        "r": rank,
        "lora_alpha": rank,  # its matrices count as they are
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
    """By name, how weights differ; those that do not are left out."""
    ours, theirs = dict(trained.named_parameters()), dict(base.named_parameters())
    if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in ours):
        raise StepladderError("the two models are not of the same shape: one cannot have become of the other")
    for name, weights in ours.items():
        delta = weights.detach().float() - theirs[name].detach().float()
        if delta.any():
            yield name, delta


def _factors(delta: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two matrices whose product is as near to a change as matrices of this rank can be."""
    left, sizes, right = torch.linalg.svd(delta, full_matrices=False)
    root = sizes[:rank].sqrt()
    up, down = left[:, :rank] * root, root[:, None] * right[:rank]
    if len(root) < rank:  # a layer that is smaller than the rank: the rest counts nothing
        up = torch.cat([up, up.new_zeros(len(up), rank - len(root))], dim=1)
        down = torch.cat([down, down.new_zeros(rank - len(root), down.shape[1])])
    return up.to(torch.bfloat16).contiguous(), down.to(torch.bfloat16).contiguous()
