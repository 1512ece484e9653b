"""Fused decode pass for Llama-like models: nine kernels per layer, where transformers takes about thirty.

In: a model of a supported class (SmolLM2 is a Llama), and one token per row with a paged KV cache. Out: the logits of
each row. The caller compares them with the model's own pass. A comparison alone would not be enough: other classes have
the same modules but use them differently, some only at late positions. Hence the list of classes.

With few rows, a pass is bound by kernel launches. Here the residual add and RMS norm are one kernel, rotary embedding
and cache write are one, and merged projections (`merge_weights`) are one matrix product.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear, rms_norm
from transformers import LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
from transformers.activations import SiLUActivation

from stepladder.engines.paged.fused_norms import fuse_norms, is_fused
from stepladder.engines.paged.kv_cache import PagedAttentionBatch
from stepladder.engines.paged.triton_kernels import add_rms_norm, rotary_and_store, silu_and_mul

#: Model classes whose forward pass was checked to be exactly this.
_SUPPORTED = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


def prepare_for_decoding(model: nn.Module) -> None:
    """Prepare a model on a GPU for inference with fewer kernels."""
    fuse_norms(model)
    if (core := _supported_core(model)) is not None:
        for layer in core.layers:
            attention, mlp = layer.self_attn, layer.mlp
            merge_weights([attention.q_proj, attention.k_proj, attention.v_proj])
            merge_weights([mlp.gate_proj, mlp.up_proj])


@torch.no_grad()
def merge_weights(layers: Sequence[nn.Linear]) -> None:
    """Make the weights of linear layers contiguous in memory, so that they can be multiplied as one matrix."""
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if any(type(part) is not nn.Parameter for part in parts) or len({part.dtype for part in parts}) > 1:
            continue
        merged = torch.cat([part.detach() for part in parts])
        for part, view in zip(parts, torch.split(merged, [len(part) for part in parts])):
            part.data = view


class FusedDecoder:
    """The parts of a model needed for a decode pass."""

    def __init__(self, model: Any, core: Any) -> None:
        self.embed, self.norm, self.rotary, self.head = core.embed_tokens, core.norm, core.rotary_emb, model.lm_head
        self.layers = [_Layer.from_module(layer) for layer in core.layers]

    @classmethod
    def for_model(cls, model: nn.Module) -> "FusedDecoder | None":
        """None if the model's class is not supported, or it has hooks, adapters or mixed dtypes."""
        core = _supported_core(model)
        if core is None or torch.is_autocast_enabled(next(model.parameters()).device.type):
            return None
        dtypes = {weights.dtype for weights in model.parameters()}
        return cls(model, core) if len(dtypes) == 1 else None

    def run(self, tokens_R: torch.Tensor, batch: PagedAttentionBatch) -> torch.Tensor:
        """The logits after each row's token; keys and values are written to the cache."""
        residual_RE = self.embed(tokens_R)
        cos, sin = self.rotary(residual_RE[None], batch.positions_M[None])
        if cos.shape[-1] != self.layers[0].head_size:
            raise ValueError(
                f"rotary embedding covers {cos.shape[-1]} of {self.layers[0].head_size} dimensions of a head"
            )
        delta_RE = None
        for number, layer in enumerate(self.layers):
            norm = layer.input_norm
            states_RE = add_rms_norm(residual_RE, delta_RE, norm.weight, norm.variance_epsilon)
            query, key, value = layer.project(states_RE)
            batch.check_layout(number, key, value)
            query = rotary_and_store(query, key, value, cos[0], sin[0], *batch.write_targets(number))
            delta_RE = layer.o_proj(batch.attend(number, query, layer.scale).flatten(1))
            norm = layer.post_attention_norm
            states_RE = add_rms_norm(residual_RE, delta_RE, norm.weight, norm.variance_epsilon)
            delta_RE = layer.down_proj(silu_and_mul(*layer.gate_up_proj(states_RE)))
        states_RE = add_rms_norm(residual_RE, delta_RE, self.norm.weight, self.norm.variance_epsilon)
        logits: torch.Tensor = self.head(states_RE)
        return logits


@dataclass(frozen=True, slots=True)
class _Layer:
    input_norm: Any
    post_attention_norm: Any
    qkv_proj: "_MergedLinear"
    o_proj: Callable[[torch.Tensor], torch.Tensor]
    gate_up_proj: "_MergedLinear"
    down_proj: Callable[[torch.Tensor], torch.Tensor]
    #: Norms of the queries and keys, if any.
    qk_norms: tuple[Any, Any] | None
    head_size: int
    scale: float

    @classmethod
    def from_module(cls, layer: Any) -> "_Layer":
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            layer.input_layernorm,
            layer.post_attention_layernorm,
            _MergedLinear([attention.q_proj, attention.k_proj, attention.v_proj]),
            attention.o_proj,
            _MergedLinear([mlp.gate_proj, mlp.up_proj]),
            mlp.down_proj,
            (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None,
            attention.head_dim,
            attention.scaling,
        )

    def project(self, states_RE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, [rows, heads, size] each."""
        query, key, value = (part.view(len(part), -1, self.head_size) for part in self.qkv_proj(states_RE))
        if self.qk_norms is not None:
            query, key = (
                rms_norm(part, norm.weight.shape, norm.weight, norm.variance_epsilon)
                for part, norm in zip((query, key), self.qk_norms)
            )
        return query, key, value


class _MergedLinear:
    """Linear layers with the same input: one matrix product if their weights are contiguous."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self.sizes = [layer.out_features for layer in layers]
        self.weight = _merged_view([layer.weight for layer in layers])
        self.bias = None
        if self.weight is not None and layers[0].bias is not None:
            self.bias = _merged_view([layer.bias for layer in layers])
            if self.bias is None:
                self.weight = None

    def __call__(self, states_RE: torch.Tensor) -> Sequence[torch.Tensor]:
        if self.weight is None:
            return [layer(states_RE) for layer in self.layers]
        return torch.split(linear(states_RE, self.weight, self.bias), self.sizes, dim=1)


def _merged_view(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """One tensor over all parts, if they are contiguous in the same storage."""
    first = parts[0].detach()
    end = first.data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous():
            return None
        end += part.nbytes
    if end > first.untyped_storage().data_ptr() + first.untyped_storage().nbytes():
        return None  # adjacent by chance
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


def _supported_core(model: nn.Module) -> Any:
    """The decoder inside a model; None if its class is not supported or it was modified."""
    if type(model) not in _SUPPORTED:
        return None
    core: Any = model.model
    linears = [model.lm_head, *(part for layer in core.layers for part in _linears(layer))]
    size = core.layers[0].self_attn.head_dim
    unmodified = (
        all(type(part) is nn.Linear for part in linears)  # no LoRA
        and all(isinstance(layer.mlp.act_fn, nn.SiLU | SiLUActivation) for layer in core.layers)
        and not any(_is_modified(module) for module in model.modules())
    )
    return core if unmodified and size >= 16 and size & (size - 1) == 0 else None


def _linears(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def _is_modified(module: nn.Module) -> bool:
    """Whether a module has hooks or a replaced `forward`."""
    replaced = "forward" in vars(module) and not is_fused(module)
    return replaced or bool(module._forward_hooks or module._forward_pre_hooks)
