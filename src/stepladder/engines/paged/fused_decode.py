"""One new token a row through a model of Llama's kind, in nine kernels a layer where transformers takes some thirty.

In: a model of a kind that is known to be built like Llama (SmolLM2 is a Llama), and rows whose keys and values are in
pages. Out: the logits of each row. It does what the model's own pass does, and whoever uses it compares the two. That
alone would not do: other models have the same parts and use them differently, some of them only far from the beginning.

With few rows a pass takes as long as its kernels take to begin one after the other, and most of them do next to
nothing. Here sums and norms are one kernel, turning by position and writing to pages are one, and matrices that lie
behind one another (`lay_together`) are multiplied as one.
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
from stepladder.engines.paged.triton_kernels import add_and_norm, gated, turn_and_store

#: Kinds of models that were read and found to do this and nothing else.
_KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


def prepare_for_decoding(model: nn.Module) -> None:
    """Let a model on a GPU that only writes do so with fewer kernels."""
    fuse_norms(model)
    if (core := _core_of(model)) is not None:
        for layer in core.layers:
            attention, mlp = layer.self_attn, layer.mlp
            lay_together([attention.q_proj, attention.k_proj, attention.v_proj])
            lay_together([mlp.gate_proj, mlp.up_proj])


@torch.no_grad()
def lay_together(layers: Sequence[nn.Linear]) -> None:
    """Put the weights of linear layers behind one another in memory, so that they can be multiplied as one."""
    for name in ("weight", "bias"):
        parts = [getattr(layer, name) for layer in layers]
        if any(type(part) is not nn.Parameter for part in parts) or len({part.dtype for part in parts}) > 1:
            continue
        whole = torch.cat([part.detach() for part in parts])
        for part, own in zip(parts, torch.split(whole, [len(part) for part in parts])):
            part.data = own


class LeanPass:
    """A model, as far as a pass needs it."""

    def __init__(self, model: Any, core: Any) -> None:
        self.embed, self.norm, self.rotary, self.head = core.embed_tokens, core.norm, core.rotary_emb, model.lm_head
        self.layers = [_Layer.of(layer) for layer in core.layers]

    @classmethod
    def of(cls, model: nn.Module) -> "LeanPass | None":
        """None where the model is built in another way, or where something listens to its layers."""
        core = _core_of(model)
        if core is None or torch.is_autocast_enabled(next(model.parameters()).device.type):
            return None
        kinds = {weights.dtype for weights in model.parameters()}
        return cls(model, core) if len(kinds) == 1 else None

    def run(self, tokens_R: torch.Tensor, reading: PagedAttentionBatch) -> torch.Tensor:
        """The logits behind each row's token; keys and values are written to the pages."""
        sum_RE = self.embed(tokens_R)
        cos, sin = self.rotary(sum_RE[None], reading.positions_M[None])
        if cos.shape[-1] != self.layers[0].head_size:
            raise ValueError(f"{cos.shape[-1]} of {self.layers[0].head_size} numbers of a head are turned")
        more_RE = None
        for number, layer in enumerate(self.layers):
            norm = layer.before_attention
            states_RE = add_and_norm(sum_RE, more_RE, norm.weight, norm.variance_epsilon)
            query, key, value = layer.heads(states_RE)
            reading.expect_like(number, key, value)
            query = turn_and_store(query, key, value, cos[0], sin[0], *reading.places(number))
            more_RE = layer.out(reading.attend(number, query, layer.scale).flatten(1))
            norm = layer.before_mlp
            states_RE = add_and_norm(sum_RE, more_RE, norm.weight, norm.variance_epsilon)
            more_RE = layer.down(gated(*layer.gate_and_up(states_RE)))
        states_RE = add_and_norm(sum_RE, more_RE, self.norm.weight, self.norm.variance_epsilon)
        logits: torch.Tensor = self.head(states_RE)
        return logits


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: Any
    before_mlp: Any
    query_key_value: "_Together"
    out: Callable[[torch.Tensor], torch.Tensor]
    gate_and_up: "_Together"
    down: Callable[[torch.Tensor], torch.Tensor]
    #: Norms of the heads of queries and keys, where there are any.
    head_norms: tuple[Any, Any] | None
    head_size: int
    scale: float

    @classmethod
    def of(cls, layer: Any) -> "_Layer":
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            layer.input_layernorm,
            layer.post_attention_layernorm,
            _Together([attention.q_proj, attention.k_proj, attention.v_proj]),
            attention.o_proj,
            _Together([mlp.gate_proj, mlp.up_proj]),
            mlp.down_proj,
            (attention.q_norm, attention.k_norm) if hasattr(attention, "q_norm") else None,
            attention.head_dim,
            attention.scaling,
        )

    def heads(self, states_RE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, [rows, heads, size] each."""
        query, key, value = (part.view(len(part), -1, self.head_size) for part in self.query_key_value(states_RE))
        if self.head_norms is not None:
            query, key = (
                rms_norm(part, norm.weight.shape, norm.weight, norm.variance_epsilon)
                for part, norm in zip((query, key), self.head_norms)
            )
        return query, key, value


class _Together:
    """Linear layers with the same input: one product where their weights lie behind one another."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        self.layers = layers
        self.sizes = [layer.out_features for layer in layers]
        self.weight = _whole([layer.weight for layer in layers])
        self.bias = None
        if self.weight is not None and layers[0].bias is not None:
            self.bias = _whole([layer.bias for layer in layers])
            if self.bias is None:
                self.weight = None

    def __call__(self, states_RE: torch.Tensor) -> Sequence[torch.Tensor]:
        if self.weight is None:
            return [layer(states_RE) for layer in self.layers]
        return torch.split(linear(states_RE, self.weight, self.bias), self.sizes, dim=1)


def _whole(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
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


def _core_of(model: nn.Module) -> Any:
    """What is between a model's embeddings and its output; None where it is of another kind, or not as it was."""
    if type(model) not in _KINDS:
        return None
    core: Any = model.model
    linears = [model.lm_head, *(part for layer in core.layers for part in _linears(layer))]
    size = core.layers[0].self_attn.head_dim
    as_it_was = (
        all(type(part) is nn.Linear for part in linears)  # no LoRA
        and all(isinstance(layer.mlp.act_fn, nn.SiLU | SiLUActivation) for layer in core.layers)
        and not any(_is_changed(module) for module in model.modules())
    )
    return core if as_it_was and size >= 16 and size & (size - 1) == 0 else None


def _linears(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    heads = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*heads, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def _is_changed(module: nn.Module) -> bool:
    """Whether something listens to a module, or does its work in its place."""
    replaced = "forward" in vars(module) and not is_fused(module)
    return replaced or bool(module._forward_hooks or module._forward_pre_hooks)
