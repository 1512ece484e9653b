"""Weights in bf16 that keep what was learnt.

In: weights in fp32, such as those of a model with LoRA's matrices added. Out: the same in bf16, rounded up or down by
chance, more often to the nearer side.

bf16 has eight bits: the neighbours of 0.2 are 0.001 away, and a small learning rate changes a weight by much less.
Rounded to the nearest, each such weight falls back to what it was before, and what was learnt is lost, all of it. By
chance a twentieth of a step becomes a whole step in one of twenty weights: over the many that add up to a product, the
change is the one that was learnt, and what is added is less than what bf16 rounds in the products themselves. A weight
that bf16 can hold stays what it is.

The chance is drawn from a weight's name and place: the same weights are rounded the same way, on every device.
"""

import zlib

import torch
from torch import nn

#: Of fp32's bits those that bf16 has not.
_CUT = 16
#: Weights at a time: what is computed with takes 8 bytes of each.
_AT_ONCE = 1 << 24
_32_BITS = 0xFFFF_FFFF


def stochastic_round(weight: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    """The weight in another precision. To bf16 it is rounded by chance, which `name` decides; else to the nearest."""
    if dtype != torch.bfloat16 or weight.dtype == torch.bfloat16:
        return weight.to(dtype)
    result = torch.empty_like(weight, dtype=dtype, memory_format=torch.contiguous_format)
    exact, flat, seed = weight.detach().float().contiguous().view(-1), result.view(-1), zlib.crc32(name.encode())
    for start in range(0, len(exact), _AT_ONCE):
        part = exact[start : start + _AT_ONCE]
        # Added to the bits that are cut off, the draw carries into those that stay as often as these bits say.
        carried = part.view(torch.int32) + _draws(start, len(part), seed, part.device)
        bits = carried >> _CUT << _CUT
        flat[start : start + _AT_ONCE] = torch.where(part.isfinite(), bits.view(torch.float32), part)
    return result


def cast_model(model: nn.Module, dtype: torch.dtype, name: str = "") -> None:
    """Bring a model, or a layer of that name, into another precision, its weights rounded as `stochastic_round` does."""
    for own, weight in model.named_parameters(prefix=name):
        weight.data = stochastic_round(weight.data, dtype, own)
    model.to(dtype)


def _draws(start: int, count: int, seed: int, device: torch.device) -> torch.Tensor:
    """As many numbers below 2^16 as there are weights from `start` on, mixed from place and seed."""
    mixed = (torch.arange(start, start + count, device=device) + seed) & _32_BITS
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        mixed ^= mixed >> shift
        mixed = (mixed * factor) & _32_BITS
    return ((mixed ^ (mixed >> 16)) & 0xFFFF).to(torch.int32)
