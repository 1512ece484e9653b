"""How much of a batch is computed at once: as much as there is memory for.

In: a model, a device, a batch of rows. Out: the batch in parts, whose losses add up to its own. What a model keeps of
every token for its gradients is by far the most of what training needs; long transcripts are therefore not all computed
at once, however many are in an update.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from stepladder.engines.transformers.packed_attention import unwrap_model
from stepladder.models.gpu_memory import free_bytes

#: Models with fewer parameters are never split: there is room for any batch of theirs.
_SMALL = 100e6
#: The share of the memory that is free at the first update, or of all memory on a CPU, for what is kept.
_SHARE_CUDA, _SHARE_CPU = 0.6, 0.25
#: The least that is computed at once.
_LEAST = 2048


def max_microbatch_tokens(model: nn.Module, device: torch.device) -> int | None:
    """How many tokens can be computed at once with gradients; None is any number."""
    core = unwrap_model(model)
    if core is None or sum(weights.numel() for weights in model.parameters()) < _SMALL:
        return None
    if device.type == "cuda":
        room = free_bytes(device) * _SHARE_CUDA
    else:
        room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SHARE_CPU
    return max(int(room / _kept_bytes(core.config.get_text_config(), device)), _LEAST)


def _kept_bytes(config: Any, device: torch.device) -> float:
    """What is kept of one token, about: some copies of its state in every layer, and of what its MLP makes of it."""
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    numbers = config.num_hidden_layers * (12 * config.hidden_size + 6 * inner)
    return float(numbers * (2 if device.type == "cuda" else 4))


def in_parts(batch: Mapping[str, Any], lengths_B: torch.Tensor, most: int | None) -> Iterator[dict[str, Any]]:
    """The rows of a batch in parts of at most so many tokens, short ones first; what is not by row is in every part.

    A row that is longer than that is a part of its own.
    """
    rows = len(lengths_B)
    if most is None or rows * int(lengths_B.max()) <= most:
        yield dict(batch)
        return
    order = torch.argsort(lengths_B, stable=True)
    first = 0
    while first < rows:
        count = 1
        while first + count < rows and (count + 1) * int(lengths_B[order[first + count]]) <= most:
            count += 1
        yield {name: _rows(value, order[first : first + count], rows) for name, value in batch.items()}
        first += count


def _rows(value: Any, chosen: torch.Tensor, rows: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[chosen.to(value.device)] if value.dim() and len(value) == rows else value
    return [value[place] for place in chosen.tolist()] if isinstance(value, list) and len(value) == rows else value
