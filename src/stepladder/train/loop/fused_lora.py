"""Fused LoRA layers: half the kernels, and no intermediate tensors.

In: a model in training with peft's LoRA layers. Out: the same model, whose plain LoRA layers add their update in place
to the output of the frozen weights. peft computes it in one tensor, scales it into another and adds both into a third;
with low ranks that takes longer than the products themselves. Layers that are not plain (dropout, DoRA, several
adapters, quantized weights), and layers whose adapter is disabled or merged, keep peft's forward pass.
"""

from functools import partial
from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from stepladder.train.loop.policy_weights import lora_layers


def fuse_lora(model: nn.Module) -> int:
    """Replace the forward pass of all plain LoRA layers; returns their number."""
    plain = [layer for layer in lora_layers(model) if _is_plain(layer)]
    for layer in plain:
        layer.forward = partial(_forward, layer)
    return len(plain)


class _LowRankLinear(torch.autograd.Function):
    """`x W' + scale (x A') B'`, where W and its bias are frozen."""

    @staticmethod
    def forward(
        ctx: Any,
        x_NI: torch.Tensor,
        weight_OI: torch.Tensor,
        bias_O: torch.Tensor | None,
        down_RI: torch.Tensor,
        up_OR: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """All tensors have the same dtype."""
        low_NR = x_NI @ down_RI.T
        ctx.save_for_backward(x_NI, weight_OI, down_RI, up_OR, low_NR)
        ctx.scale = scale
        return linear(x_NI, weight_OI, bias_O).addmm_(low_NR, up_OR.T, alpha=scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NO: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x_NI, weight_OI, down_RI, up_OR, low_NR = ctx.saved_tensors
        grad_low_NR = (grad_NO @ up_OR) * ctx.scale
        grad_up_OR = (grad_NO.T @ low_NR) * ctx.scale
        grad_down_RI = grad_low_NR.T @ x_NI
        grad_x_NI = (grad_NO @ weight_OI).addmm_(grad_low_NR, down_RI) if ctx.needs_input_grad[0] else None
        return grad_x_NI, None, None, grad_down_RI, grad_up_OR, None


def _forward(layer: Any, x: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
    if len(layer.lora_A) != 1:  # another adapter was added
        return Linear.forward(layer, x, *arguments, **options)
    (name,) = layer.lora_A
    base, down, up = layer.base_layer, layer.lora_A[name].weight, layer.lora_B[name].weight
    kind = x.device.type
    cast = torch.is_autocast_enabled(kind)
    dtype = torch.get_autocast_dtype(kind) if cast else x.dtype
    other = layer.disable_adapters or layer.merged or layer.active_adapters != [name] or arguments or options
    if other or not (cast or dtype == base.weight.dtype == down.dtype):
        return Linear.forward(layer, x, *arguments, **options)
    bias = None if base.bias is None else base.bias.to(dtype)
    output: torch.Tensor = _LowRankLinear.apply(  # type: ignore[no-untyped-call]
        x.to(dtype).reshape(-1, x.shape[-1]),
        base.weight.to(dtype),
        bias,
        down.to(dtype),
        up.to(dtype),
        layer.scaling[name],
    )
    return output.view(*x.shape[:-1], output.shape[-1])


def _is_plain(layer: Any) -> bool:
    if type(layer) is not Linear or type(layer.base_layer) is not nn.Linear or len(layer.lora_A) != 1:
        return False
    (name,) = layer.lora_A
    frozen = not any(weights.requires_grad for weights in layer.base_layer.parameters())
    without_bias = layer.lora_A[name].bias is None and layer.lora_B[name].bias is None
    parts = (layer.base_layer, layer.lora_A[name], layer.lora_B[name], layer.lora_dropout[name])
    hooked = "forward" in vars(layer) or any(part._forward_hooks or part._forward_pre_hooks for part in parts)
    other = getattr(layer, "lora_variant", None) or getattr(layer, "use_dora", {}).get(name) or layer.fan_in_fan_out
    no_dropout = isinstance(layer.lora_dropout[name], nn.Identity) and not other
    return frozen and without_bias and no_dropout and not hooked
