"""LoRA in vLLM: the rank of an adapter, and the model without the layers that vLLM puts around its own for adapters."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepladder.core.errors import StepladderError

#: The maximum ranks of adapters that vLLM supports.
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def lora_rank(adapter: Path) -> int:
    """The rank of an adapter."""
    from peft import PeftConfig

    rank = getattr(PeftConfig.from_pretrained(str(adapter)), "r", None)
    if not isinstance(rank, int):
        raise StepladderError(f"{adapter} is not a LoRA adapter; vLLM supports no other kind")
    return rank


@contextmanager
def without_lora_wrappers(model: torch.nn.Module) -> Iterator[Any]:
    """The model without vLLM's LoRA wrappers, so that weights have their checkpoint names."""
    wrapped = [
        (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(getattr(layer, "base_layer", None), torch.nn.Module)
    ]
    for parent, name, layer in wrapped:
        setattr(parent, name, layer.base_layer)
    try:
        yield model
    finally:
        for parent, name, layer in wrapped:
            setattr(parent, name, layer)
