"""Packed attention: sequences of many rows in one forward pass, without padding or copies of the KV cache.

In: the tokens of any number of rows, concatenated (packed), through transformers' attention interface. Out: the
attention of each token to its own row.

A `DenseKVCache` holds rows of similar length, with one buffer of keys and one of values per layer. A token's column is
its position, so a cache can be filled from other caches, truncated anywhere, and written in place. Linear layers see
all rows as one matrix; attention runs per cache, each as long as its longest row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

#: The name of `packed_attention` in transformers' registry.
PACKED = "stepladder_packed"
#: The number of columns is a multiple of this: fast kernels need aligned masks.
COLUMN_MULTIPLE = 16
#: Arguments of models that need more than plain causal attention.
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
#: All kernels except cuDNN's, which is set up again for every shape; here shapes change whenever a row finishes.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class PackingUnsupported(Exception):
    """The model needs more than `packed_attention` supports: use the padded decoding loop."""


class DenseKVCache:
    """KV cache of some rows, by layer: keys and values of [rows, heads, columns, head size]."""

    def __init__(self, size: int, columns: int) -> None:
        self.size = size
        self.columns = _round_up(columns)
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffers in self.layers.values() for buffer in buffers)

    def layer(self, index: int, key_MHD: torch.Tensor, value_MHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a layer, allocated when its first ones arrive."""
        if not all(map(fits, self.layers.get(index, ()), (key_MHD, value_MHD))) or index not in self.layers:
            self.layers[index] = self._new(key_MHD), self._new(value_MHD)
        return self.layers[index]

    def _new(self, like: torch.Tensor) -> torch.Tensor:
        """A buffer for such keys or values, [tokens, heads, head size], or for those of such a buffer."""
        # Zeros: columns beyond a row's end are read with weight 0, and 0 * nan would be nan.
        return like.new_zeros(self.size, like.shape[1], self.columns, like.shape[-1])

    def copy(self, other: "DenseKVCache", rows: Sequence[int], from_rows: Sequence[int], columns: int) -> None:
        """Copy the first columns of some rows of another cache, or of this one."""
        target, source = torch.tensor(rows), torch.tensor(from_rows)
        for index, (keys, values) in other.layers.items():
            if index not in self.layers:
                self.layers[index] = self._new(keys), self._new(values)
            for mine, theirs in zip(self.layers[index], (keys, values)):
                mine[target, :, :columns] = theirs[source, :, :columns]

    def swap(self, rows: Sequence[int], others: Sequence[int]) -> None:
        """Swap rows."""
        target, source = torch.tensor([*rows, *others]), torch.tensor([*others, *rows])
        for buffers in self.layers.values():
            for buffer in buffers:
                buffer[target] = buffer[source]

    def reserve(self, columns: int) -> None:
        """Ensure that there are at least this many columns."""
        if columns <= self.columns:
            return
        before, self.columns = self.columns, _round_up(max(columns, self.columns + self.columns // 4))
        for index, (keys, values) in self.layers.items():
            self.layers[index] = self._new(keys), self._new(values)
            for longer, buffer in zip(self.layers[index], (keys, values)):
                longer[:, :, :before] = buffer


@dataclass
class AttentionBatch(ABC):
    """The tokens of one forward pass, row after row, at least one per row."""

    rows: int
    #: By token: its row and its position in that row.
    rows_M: torch.Tensor
    positions_M: torch.Tensor
    #: Number of columns to attend to: at least the last position + 1.
    columns: int
    #: Maximum number of tokens per row.
    max_query_len: int

    def __post_init__(self) -> None:
        self.columns = _round_up(self.columns)
        #: Whether attention stopped at the length of each row, whatever `columns` is: true for our own kernel only.
        self.length_aware = True
        #: Whether a model has used this batch.
        self.attended = False
        self._masks: dict[torch.dtype, torch.Tensor] = {}

    @abstractmethod
    def write(self, layer: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:
        """Write the tokens' keys and values of a layer."""

    @abstractmethod
    def key_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of the rows, [rows, heads, columns, head size]."""

    @cached_property
    def _slots_M(self) -> torch.Tensor:
        """The index of each token among the tokens of its row."""
        first_R = torch.searchsorted(self.rows_M, torch.arange(self.rows, device=self.rows_M.device))
        return torch.arange(len(self.rows_M), device=self.rows_M.device) - first_R[self.rows_M]

    def _mask(self, dtype: torch.dtype, groups: int) -> torch.Tensor:
        """The additive mask of scores [rows, heads, groups x tokens, columns]: 0 for columns up to the token's own."""
        if dtype not in self._masks:
            device = self.positions_M.device
            columns_T = torch.arange(self.columns, device=device)
            if self.max_query_len == 1:
                visible = columns_T <= self.positions_M[:, None, None, None]
            else:
                positions_RN = self.positions_M.new_zeros(self.rows, self.max_query_len)
                positions_RN[self.rows_M, self._slots_M] = self.positions_M
                visible = (columns_T <= positions_RN[:, None, :, None]).repeat(1, 1, groups, 1)
            zero = torch.zeros((), dtype=dtype, device=device)
            self._masks[dtype] = torch.where(visible, zero, float("-inf"))
        return self._masks[dtype]

    def attend(self, layer: int, query_MHD: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Causal attention of the tokens to their rows. Heads K, H = K x G."""
        self.attended, self.length_aware = True, False
        keys_RKTD, values_RKTD = self.key_values(layer)
        (tokens, heads, size), kv_heads = query_MHD.shape, keys_RKTD.shape[1]
        groups = heads // kv_heads
        mask = self._mask(query_MHD.dtype, groups)
        # Heads that share keys are folded into the token dimension: each key is read once, none is copied.
        if self.max_query_len == 1:
            query = query_MHD.reshape(tokens, kv_heads, groups, size)
            out = scaled_dot_product_attention(query, keys_RKTD, values_RKTD, attn_mask=mask, scale=scale)
            return out.reshape(tokens, heads, -1)
        query = query_MHD.new_zeros(self.rows, self.max_query_len, kv_heads, groups, size)
        query[self.rows_M, self._slots_M] = query_MHD.reshape(tokens, kv_heads, groups, size)
        query = query.permute(0, 2, 3, 1, 4).reshape(self.rows, kv_heads, groups * self.max_query_len, size)
        out = scaled_dot_product_attention(query, keys_RKTD, values_RKTD, attn_mask=mask, scale=scale)
        out = out.view(self.rows, kv_heads, groups, self.max_query_len, -1).permute(0, 3, 1, 2, 4)
        return out[self.rows_M, self._slots_M].reshape(tokens, heads, -1)


@dataclass
class DenseAttentionBatch(AttentionBatch):
    """Tokens of rows of a dense KV cache, starting at row `first`."""

    kv_cache: DenseKVCache
    first: int

    def _window(self, buffers: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        window = slice(self.first, self.first + self.rows), slice(None), slice(self.columns)
        return buffers[0][window], buffers[1][window]

    def write(self, layer: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:
        """Write the tokens' keys and values of a layer."""
        keys_RKTD, values_RKTD = self._window(self.kv_cache.layer(layer, key_MKD, value_MKD))
        keys_RKTD[self.rows_M, :, self.positions_M] = key_MKD
        values_RKTD[self.rows_M, :, self.positions_M] = value_MKD

    def key_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of the rows, as views."""
        return self._window(self.kv_cache.layers[layer])


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed_batches: Sequence[AttentionBatch] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers, for a packed sequence of many rows: [1, heads, tokens, size]."""
    unsupported = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if packed_batches is None:
        raise PackingUnsupported(
            f"{type(module).__name__} got no `packed_batches`: its model does not pass keyword arguments on, or was "
            "called during generation by an engine in another thread"
        )
    if attention_mask is not None or unsupported or query.device != packed_batches[0].rows_M.device:
        raise PackingUnsupported(f"{type(module).__name__} needs {unsupported or 'a mask'}, or is on another device")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    query_MHD, key_MKD, value_MKD = (key_values[0].transpose(0, 1) for key_values in (query, key, value))
    ends = list(accumulate(len(batch.rows_M) for batch in packed_batches))
    spans = [slice(start, end) for start, end in zip([0, *ends], ends)]
    for batch, span in zip(packed_batches, spans):  # write all before reading any: rows may share pages
        batch.write(layer, key_MKD[span], value_MKD[span])
    parts = [batch.attend(layer, query_MHD[span], scaling) for batch, span in zip(packed_batches, spans)]
    return (torch.cat(parts) if len(parts) > 1 else parts[0])[None], None


AttentionInterface.register(PACKED, packed_attention)


def forward_packed(
    model: Any, ids_M: torch.Tensor, batches: Sequence[AttentionBatch], ends: torch.Tensor | int
) -> torch.Tensor:
    """One forward pass over a packed sequence; the logits at `ends` (0: everywhere)."""
    positions_M = torch.cat([batch.positions_M for batch in batches])
    output = model(
        input_ids=ids_M[None],
        position_ids=positions_M[None],
        use_cache=False,
        logits_to_keep=ends,
        packed_batches=batches,
    )
    if not batches[0].attended:
        raise PackingUnsupported(f"{type(model).__name__} does not use transformers' attention interface")
    logits: torch.Tensor = output.logits[0]
    return logits


def unwrap_model(model: nn.Module) -> PreTrainedModel | None:
    """The transformers model inside wrappers such as PEFT's."""
    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)


def supports_packing(model: nn.Module) -> bool:
    """Whether the model accepts a custom attention function and has plain attention in every layer."""
    core = unwrap_model(model)
    if core is None or not core._supports_attention_backend:
        return False
    layers = DynamicCache(config=core.config.get_text_config()).layers
    return all(type(layer) is DynamicLayer for layer in layers)


@contextmanager
def use_packed_attention(model: nn.Module) -> Iterator[None]:
    """Inside the context, the model uses `packed_attention`; restored afterwards."""
    core = unwrap_model(model)
    assert core is not None
    parts = {name: part for name in core.config.sub_configs if (part := getattr(core.config, name, None)) is not None}
    before = {"": core.config._attn_implementation}
    before.update({name: part._attn_implementation for name, part in parts.items()})
    core.config._attn_implementation = PACKED
    try:
        with sdpa_kernel(_KERNELS):
            yield
    finally:
        core.config._attn_implementation = before


def fits(buffer: torch.Tensor, states_MHD: torch.Tensor) -> bool:
    """Whether keys or values fit a buffer of [.., heads, columns, head size]."""
    same_size = (buffer.shape[1], buffer.shape[3]) == tuple(states_MHD.shape[1:])
    return same_size and buffer.dtype == states_MHD.dtype and buffer.device == states_MHD.device


def _round_up(columns: int) -> int:
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
