"""The norms of a model, each as one kernel instead of eight.

In: a model on a GPU. Out: the same model, whose RMS norms are torch's fused one. With few rows a token takes as long as
its kernels take to begin, and in models of Llama's kind a third of them belong to norms; with many, each of the eight
reads and writes all of what goes through. A norm is left as it is unless
both say the same of a sample, up to rounding: there are models that add 1 to its weights, or scale what comes out.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import rms_norm

#: How far the two may be apart: what bf16 rounds.
_OFF = 0.02


def fuse_norms(model: nn.Module) -> int:
    """Replace the norms that can be; how many these are."""
    plain = [module for module in model.modules() if _is_plain(module)]
    for module in plain:
        module.forward = partial(_fused, module)
    return len(plain)


def is_fused(module: nn.Module) -> bool:
    """Whether a module is a norm that was replaced."""
    forward = vars(module).get("forward")
    return isinstance(forward, partial) and forward.func is _fused


def _fused(norm: Any, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.dtype != norm.weight.dtype:  # autocast: what comes out has the precision that the model itself gives it
        own: torch.Tensor = type(norm).forward(norm, hidden)
        return own
    return rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon).to(hidden.dtype)


@torch.no_grad()
def _is_plain(module: nn.Module) -> bool:
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not (isinstance(weight, torch.Tensor) and weight.dim() == 1 and isinstance(eps, float)):
        return False
    if not type(module).__name__.endswith("RMSNorm") or "forward" in vars(module):
        return False
    sample = torch.linspace(-3, 3, 2 * len(weight), device=weight.device, dtype=weight.dtype).view(2, -1)
    return torch.allclose(module(sample), _fused(module, sample), rtol=_OFF, atol=_OFF)
