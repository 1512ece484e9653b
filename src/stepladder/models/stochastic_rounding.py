"""Stochastic rounding of fp32 weights to bf16, which preserves small updates.

In: fp32 weights, such as those of a model with merged LoRA matrices. Out: the same in bf16, each rounded up or down at
random with probabilities that keep the expected value.

bf16 has eight significant bits: the values next to 0.2 are 0.001 away, and a small learning rate changes a weight by
much less. Round-to-nearest would undo every such change. With stochastic rounding, a change of 1/20 of the spacing
becomes a full step in one of 20 weights: summed over a dot product, the expected change is preserved, and the added
noise is below the rounding error of bf16 arithmetic. Weights that bf16 represents exactly are unchanged.

The random bits are a hash of parameter name and position: the result is deterministic and the same on every device.
"""

import zlib

import torch
from torch import nn

#: The low bits of fp32 that bf16 lacks.
_DROPPED_BITS = 16
#: Weights per chunk, whose intermediate results take 8 bytes per weight: they fit the caches of a processor.
_CHUNK = 1 << 20
_32_BITS = 0xFFFF_FFFF


def stochastic_round(weight: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """The weight in another dtype: stochastic rounding to bf16 (seeded by `name`), round-to-nearest otherwise."""
    if dtype != torch.bfloat16 or weight.dtype == torch.bfloat16:
        return weight.to(dtype)
    result = torch.empty_like(weight, dtype=dtype, memory_format=torch.contiguous_format)
    exact, flat, seed = weight.detach().float().contiguous().view(-1), result.view(-1), zlib.crc32(name.encode())
    for start in range(0, len(exact), _CHUNK):
        part = exact[start : start + _CHUNK]
        # Random bits added to the dropped bits carry into the kept ones with the right probability.
        carried = part.view(torch.int32) + _random_bits(start, len(part), seed, part.device)
        bits = carried >> _DROPPED_BITS << _DROPPED_BITS
        flat[start : start + _CHUNK] = torch.where(part.isfinite(), bits.view(torch.float32), part)
    return result


def cast_model(model: nn.Module, dtype: torch.dtype, name: str = "", device: torch.device | None = None) -> None:
    """Cast a model, or the layer with that name, to another dtype with `stochastic_round`.

    `device`: where each weight is rounded, if not where it is: a GPU is much faster.
    """
    for own, weight in model.named_parameters(prefix=name):
        rounded = stochastic_round(weight.data.to(device or weight.device), dtype, own)
        weight.data = rounded.to(weight.device)
    model.to(dtype)


def _random_bits(start: int, count: int, seed: int, device: torch.device) -> torch.Tensor:
    """`count` numbers below 2^16, hashed from position (from `start`) and seed."""
    mixed = (torch.arange(start, start + count, device=device) + seed) & _32_BITS
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        mixed ^= mixed >> shift
        mixed = (mixed * factor) & _32_BITS
    return ((mixed ^ (mixed >> 16)) & 0xFFFF).to(torch.int32)
