"""One new token a row through a model of Llama's kind, in nine kernels a layer where transformers takes some thirty.

In: a model of a kind that is known to be built like Llama (SmolLM2 is a Llama), and rows whose keys and values are in
pages. Out: the logits of each row. It does what the model's own pass does, and whoever uses it compares the two. That
alone would not do: other models have the same parts and use them differently, some of them only far from the beginning.

With few rows a pass takes as long as its kernels take to begin one after the other, and most of them do next to
nothing. Here sums and norms are one kernel, turning by position and writing to pages are one, and matrices that lie
behind one another (`merge_weights`) are multiplied as one.
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

#: Kinds of models that were read and found to do this and nothing else.
_SUPPORTED = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


def prepare_for_decoding(model: nn.Module) -> None:
    """Let a model on a GPU that only writes do so with fewer kernels."""
    fuse_norms(model)
    if (core := _supported_core(model)) is not None:
        for layer in core.layers:
            attention, mlp = layer.self_attn, layer.mlp
            merge_weights([attention.q_proj, attention.k_proj, attention.v_proj])
            merge_weights([mlp.gate_proj, mlp.up_proj])


@torch.no_grad()
def merge_weights(layers: Sequence[nn.Linear]) -> None:
    """Put the weights of linear layers behind one another in memory, so that they can be multiplied as one."""
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if any(type(part) is not nn.Parameter for part in parts) or len({part.dtype for part in parts}) > 1:
            continue
        merged = torch.cat([part.detach() for part in parts])
        for part, view in zip(parts, torch.split(merged, [len(part) for part in parts])):
            part.data = view


class FusedDecoder:
    """A model, as far as a pass needs it."""

    def __init__(self, model: Any, core: Any) -> None:
        self.embed, self.norm, self.rotary, self.head = core.embed_tokens, core.norm, core.rotary_emb, model.lm_head
        self.layers = [_Layer.from_module(layer) for layer in core.layers]

    @classmethod
    def for_model(cls, model: nn.Module) -> "FusedDecoder | None":
        """None where the model is built in another way, or where something listens to its layers."""
        core = _supported_core(model)
        if core is None or torch.is_autocast_enabled(next(model.parameters()).device.type):
            return None
        dtypes = {weights.dtype for weights in model.parameters()}
        return cls(model, core) if len(dtypes) == 1 else None

    def run(self, tokens_R: torch.Tensor, batch: PagedAttentionBatch) -> torch.Tensor:
        """The logits behind each row's token; keys and values are written to the pages."""
        residual_RE = self.embed(tokens_R)
        cos, sin = self.rotary(residual_RE[None], batch.positions_M[None])
        if cos.shape[-1] != self.layers[0].head_size:
            raise ValueError(f"{cos.shape[-1]} of {self.layers[0].head_size} numbers of a head are turned")
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
    #: Norms of the heads of queries and keys, where there are any.
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
    """Linear layers with the same input: one product where their weights lie behind one another."""

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
    """The tensor that parts are of, where they lie behind one another and nothing between them."""
    first = parts[0].detach()
    end = first.data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous():
            return None
        end += part.nbytes
    if end > first.untyped_storage().data_ptr() + first.untyped_storage().nbytes():
        return None  # neighbours by chance
    return first.as_strided((sum(len(part) for part in parts), *first.shape[1:]), first.stride())


def _supported_core(model: nn.Module) -> Any:
    """What is between a model's embeddings and its output; None where it is of another kind, or not as it was."""
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
    """Whether something listens to a module, or does its work in its place."""
    replaced = "forward" in vars(module) and not is_fused(module)
    return replaced or bool(module._forward_hooks or module._forward_pre_hooks)
