"""Keys and values of many transcripts, read and written without padding or copies.

In: tokens of any number of rows, behind one another in a single line (packed), as a model of transformers reads them
through its own attention interface. Out: the attention of each token to its own row alone.

A `DenseKVCache` holds rows of like length, with a buffer of keys and one of values a layer. A token's column is its position,
so that a block can be filled from other blocks, cut anywhere, and written to in place. Linear layers see all rows of
all blocks as one matrix; attention is computed block by block, each as long as its own longest row.
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

#: The name under which transformers knows `packed_attention`.
PACKED = "stepladder_packed"
#: Columns come in multiples of this, as fast kernels want masks to be.
COLUMN_MULTIPLE = 16
#: Arguments by which models ask for more than plain causal attention.
_UNSUPPORTED = ("sliding_window", "softcap", "s_aux", "position_bias")
#: All kernels but cuDNN's, which are prepared anew for every shape; here shapes change with every row that ends.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


#: The number of a stack, and a layer's place in it.
_Slot = tuple[int, int]


class PackingUnsupported(Exception):
    """The model's attention is more than `packed_attention` knows: it has to be run in the ordinary way."""


class DenseKVCache:
    """Keys and values of some rows, by layer: buffers of [rows, heads, columns, head size].

    Those of all layers lie in one tensor, so that rows are copied in one go. Layers that differ from the first, in size
    or device, have tensors of their own.
    """

    def __init__(self, size: int, columns: int) -> None:
        self.size = size
        self.columns = _round_up(columns)
        #: [layers, rows, heads, columns, head size] each; and by layer the places of its keys and of its values.
        self.stacks: list[torch.Tensor] = []
        self.layer_slots: dict[int, tuple[_Slot, _Slot]] = {}

    @property
    def bytes(self) -> int:
        return sum(stack.nbytes for stack in self.stacks)

    def layer(
        self, index: int, layers: int, key_MHD: torch.Tensor, value_MHD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers of a layer of so many, made when their first keys and values come."""
        if index not in self.layer_slots:
            if not self.stacks and index < layers:
                keys, values = self._new(layers, key_MHD), self._new(layers, value_MHD)
                self.layer_slots = {each: ((keys, each), (values, each)) for each in range(layers)}
            else:
                self.layer_slots[index] = (self._new(1, key_MHD), 0), (self._new(1, value_MHD), 0)
        buffers = self.buffers(index)
        if not all(fits(buffer, key_values) for buffer, key_values in zip(buffers, (key_MHD, value_MHD))):
            self.layer_slots[index] = (self._new(1, key_MHD), 0), (self._new(1, value_MHD), 0)
            buffers = self.buffers(index)
        return buffers

    def buffers(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a layer."""
        (keys, key), (values, value) = self.layer_slots[index]
        return self.stacks[keys][key], self.stacks[values][value]

    def _new(self, layers: int, states_MHD: torch.Tensor) -> int:
        """A stack for such keys or values; its number."""
        # Zeros, since columns beyond a row's end are read, if with no weight: 0 * nan would be nan.
        heads, size = states_MHD.shape[1:]
        self.stacks.append(states_MHD.new_zeros(layers, self.size, heads, self.columns, size))
        return len(self.stacks) - 1

    def copy(self, other: "DenseKVCache", rows: Sequence[int], from_rows: Sequence[int], columns: int) -> None:
        """Take the first columns of some rows of another block, or of this one."""
        if len(self.stacks) < len(other.stacks):
            for stack in other.stacks[len(self.stacks) :]:
                layers, _, heads, _, size = stack.shape
                self.stacks.append(stack.new_zeros(layers, self.size, heads, self.columns, size))
            self.layer_slots = dict(other.layer_slots)
        target, source = _Index(rows), _Index(from_rows)
        for mine, theirs in zip(self.stacks, other.stacks):
            device = theirs.device
            mine[:, target.on(device), :, :columns] = theirs[:, source.on(device), :, :columns]

    def swap(self, rows: Sequence[int], others: Sequence[int]) -> None:
        """Swap rows with others."""
        target, source = _Index([*rows, *others]), _Index([*others, *rows])
        for stack in self.stacks:
            stack[:, target.on(stack.device)] = stack[:, source.on(stack.device)]

    def reserve(self, columns: int) -> None:
        """See to it that there are so many columns."""
        if columns <= self.columns:
            return
        before, self.columns = self.columns, _round_up(max(columns, self.columns + self.columns // 4))
        for index, stack in enumerate(self.stacks):
            layers, rows, heads, _, size = stack.shape
            longer = stack.new_zeros(layers, rows, heads, self.columns, size)
            longer[:, :, :, :before] = stack
            self.stacks[index] = longer


@dataclass
class AttentionBatch(ABC):
    """Tokens that rows read in one pass, row after row, at least one for each."""

    rows: int
    #: By token: its row and its position there.
    rows_M: torch.Tensor
    positions_M: torch.Tensor
    #: Columns to look at: at least the last position + 1.
    columns: int
    #: Most tokens of one row.
    max_query_len: int

    def __post_init__(self) -> None:
        self.columns = _round_up(self.columns)
        #: Whether each row was looked at as far as it goes, however many columns there are: so by a kernel of our own.
        self.length_aware = True
        #: Whether a model has attended by it.
        self.attended = False
        self._masks: dict[torch.dtype, torch.Tensor] = {}

    @abstractmethod
    def write(self, layer: int, layers: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:
        """Write the tokens' keys and values down, of a layer of so many."""

    @abstractmethod
    def key_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of the rows, [rows, heads, columns, head size]."""

    def attend_decode(self, layer: int, query_MHD: torch.Tensor, scale: float | None) -> torch.Tensor | None:  # noqa: ARG002
        """Attention of one token a row, where there is a faster way than by a mask."""
        return None

    @cached_property
    def _slots_M(self) -> torch.Tensor:
        """The number of each token among those of its row."""
        first_R = torch.searchsorted(self.rows_M, torch.arange(self.rows, device=self.rows_M.device))
        return torch.arange(len(self.rows_M), device=self.rows_M.device) - first_R[self.rows_M]

    def _mask(self, dtype: torch.dtype, groups: int) -> torch.Tensor:
        """What is added to scores of [rows, heads, groups x tokens, columns]: 0 for columns up to a token's own."""
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
        """The tokens' attention to all of their rows up to them. Heads K, H = K x G."""
        self.attended = True
        if self.max_query_len == 1 and (decoded := self.attend_decode(layer, query_MHD, scale)) is not None:
            return decoded
        self.length_aware = False
        keys_RKTD, values_RKTD = self.key_values(layer)
        (tokens, heads, size), kv_heads = query_MHD.shape, keys_RKTD.shape[1]
        groups = heads // kv_heads
        mask = self._mask(query_MHD.dtype, groups)
        # The heads that share keys stand where tokens stand: each key is read once, and none is copied.
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
    """Tokens that are read by rows of a block, from `first` on."""

    kv_cache: DenseKVCache
    first: int

    def _window(self, buffers: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        window = slice(self.first, self.first + self.rows), slice(None), slice(self.columns)
        return buffers[0][window], buffers[1][window]

    def write(self, layer: int, layers: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:
        """Write the tokens' keys and values down, of a layer of so many."""
        keys_RKTD, values_RKTD = self._window(self.kv_cache.layer(layer, layers, key_MKD, value_MKD))
        keys_RKTD[self.rows_M, :, self.positions_M] = key_MKD
        values_RKTD[self.rows_M, :, self.positions_M] = value_MKD

    def key_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of the rows, where they lie."""
        return self._window(self.kv_cache.buffers(layer))


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
    """Attention as transformers calls it, for a line of tokens that belong to many rows: [1, heads, tokens, size]."""
    unsupported = [name for name in _UNSUPPORTED if options.get(name) is not None]
    if packed_batches is None:
        raise PackingUnsupported(
            f"{type(module).__name__} was not told which rows to read: its model does not pass arguments on, or was "
            "called while an engine writes with it in another thread"
        )
    if attention_mask is not None or unsupported or query.device != packed_batches[0].rows_M.device:
        raise PackingUnsupported(f"{type(module).__name__} asks for {unsupported or 'a mask'}, or is on another device")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    layers = getattr(getattr(module, "config", None), "num_hidden_layers", None) or layer + 1
    query_MHD, key_MKD, value_MKD = (key_values[0].transpose(0, 1) for key_values in (query, key, value))
    ends = list(accumulate(len(batch.rows_M) for batch in packed_batches))
    spans = [slice(start, end) for start, end in zip([0, *ends], ends)]
    for batch, span in zip(packed_batches, spans):  # before any looks: rows may share what others read in this pass
        batch.write(layer, layers, key_MKD[span], value_MKD[span])
    parts = [batch.attend(layer, query_MHD[span], scaling) for batch, span in zip(packed_batches, spans)]
    return (torch.cat(parts) if len(parts) > 1 else parts[0])[None], None


AttentionInterface.register(PACKED, packed_attention)


def forward_packed(
    model: Any, ids_M: torch.Tensor, batches: Sequence[AttentionBatch], ends: torch.Tensor | int
) -> torch.Tensor:
    """One pass over a line of tokens; the logits at `ends` (0: everywhere)."""
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
    """The transformers model within wrappers such as peft's."""
    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)


def supports_packing(model: nn.Module) -> bool:
    """Whether the model says that it takes attention functions of others, and has plain attention in every layer."""
    core = unwrap_model(model)
    if core is None or not core._supports_attention_backend:
        return False
    layers = DynamicCache(config=core.config.get_text_config()).layers
    return all(type(layer) is DynamicLayer for layer in layers)


@contextmanager
def use_packed_attention(model: nn.Module) -> Iterator[None]:
    """Within, the model attends by `packed_attention`. Afterwards as before."""
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


class _Index:
    """Numbers of rows, sent to each device once."""

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = torch.tensor(rows, dtype=torch.long)
        self._sent: dict[torch.device, torch.Tensor] = {}

    def on(self, device: torch.device) -> torch.Tensor:
        if device not in self._sent:
            self._sent[device] = self._rows.to(device)
        return self._sent[device]


def fits(buffer: torch.Tensor, states_MHD: torch.Tensor) -> bool:
    """Whether keys or values can be written to a buffer of [.., heads, columns, head size]."""
    same_size = (buffer.shape[1], buffer.shape[3]) == tuple(states_MHD.shape[1:])
    return same_size and buffer.dtype == states_MHD.dtype and buffer.device == states_MHD.device


def _round_up(columns: int) -> int:
    return -(-columns // COLUMN_MULTIPLE) * COLUMN_MULTIPLE
