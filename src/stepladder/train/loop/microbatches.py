"""Split a batch into microbatches that fit into memory.

In: a model, a device, a batch of rows. Out: microbatches whose losses add up to that of the batch. Activations kept for
the backward pass dominate the memory of training, so the number of tokens per microbatch is limited, however many
transcripts an update has.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from stepladder.engines.transformers.packed_attention import unwrap_model
from stepladder.models.gpu_memory import free_bytes

#: Batches of models with fewer parameters are never split: they always fit.
_SMALL = 100e6
#: Share of memory for activations: of what is free at the first update on a GPU, of all memory on a CPU.
_SHARE_CUDA, _SHARE_CPU = 0.6, 0.25
#: Minimum tokens per microbatch.
_MIN_TOKENS = 2048


def max_microbatch_tokens(
    model: nn.Module, device: torch.device, *, gradient_checkpointing: bool = False
) -> int | None:
    """The most tokens per forward and backward pass; None is unlimited."""
    core = unwrap_model(model)
    if core is None or sum(weights.numel() for weights in model.parameters()) < _SMALL:
        return None
    if device.type == "cuda":
        budget = free_bytes(device) * _SHARE_CUDA
    else:
        budget = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SHARE_CPU
    bytes_per_token = _activation_bytes(core.config.get_text_config(), device, checkpointed=gradient_checkpointing)
    return max(int(budget / bytes_per_token), _MIN_TOKENS)


def _activation_bytes(config: Any, device: torch.device, *, checkpointed: bool = False) -> float:
    """Approximate activation memory per token: copies of its hidden state and of the MLP's in every layer.

    `checkpointed`: of one layer only, and the input of every other.
    """
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    layer = 12 * config.hidden_size + 6 * inner
    numbers = (
        layer + config.num_hidden_layers * config.hidden_size if checkpointed else config.num_hidden_layers * layer
    )
    return float(numbers * (2 if device.type == "cuda" else 4))


def split_microbatches(
    batch: Mapping[str, Any], lengths_B: torch.Tensor, max_tokens: int | None
) -> Iterator[dict[str, Any]]:
    """Microbatches of at most `max_tokens`, short rows first. Values that are not per row are in every microbatch.

    A longer row is a microbatch of its own.
    """
    rows = len(lengths_B)
    if max_tokens is None or rows * int(lengths_B.max()) <= max_tokens:
        yield dict(batch)
        return
    order = torch.argsort(lengths_B, stable=True)
    first = 0
    while first < rows:
        count = 1
        while first + count < rows and (count + 1) * int(lengths_B[order[first + count]]) <= max_tokens:
            count += 1
        yield {name: _select_rows(value, order[first : first + count], rows) for name, value in batch.items()}
        first += count


def _select_rows(value: Any, chosen: torch.Tensor, rows: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[chosen.to(value.device)] if value.dim() and len(value) == rows else value
    return [value[index] for index in chosen.tolist()] if isinstance(value, list) and len(value) == rows else value
