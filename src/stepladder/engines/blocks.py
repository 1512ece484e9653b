"""Keys and values of many transcripts, read and written without padding or copies.

In: tokens of any number of rows, behind one another in a single line (packed), as a model of transformers reads them
through its own attention interface. Out: the attention of each token to its own row alone.

A `Block` holds rows of like length, one buffer of keys and one of values a layer. A token's column is its position, so
that a block can be filled from other blocks, cut anywhere, and written to in place. Linear layers see all rows of all
blocks as one matrix; attention is computed block by block, each as long as its own longest row.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
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
COLUMNS = 16
#: Arguments by which models ask for more than plain causal attention.
_SPECIAL = ("sliding_window", "softcap", "s_aux", "position_bias")
#: All kernels but cuDNN's, which are prepared anew for every shape; here shapes change with every row that ends.
_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class CannotPack(Exception):
    """The model's attention is more than `packed_attention` knows: it has to be run in the ordinary way."""


class Block:
    """Keys and values of some rows, by layer: buffers of [rows, heads, columns, head size]."""

    def __init__(self, size: int, columns: int) -> None:
        self.size = size
        self.columns = _round_up(columns)
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    @property
    def buffers(self) -> Iterator[torch.Tensor]:
        yield from self.keys.values()
        yield from self.values.values()

    @property
    def bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def layer(self, number: int, key_MHD: torch.Tensor, value_MHD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The buffers of a layer, made when its first keys and values come."""
        if number not in self.keys:
            # Zeros, since columns beyond a row's end are read, if with no weight: 0 * nan would be nan.
            self.keys[number] = key_MHD.new_zeros(self.size, key_MHD.shape[1], self.columns, key_MHD.shape[2])
            self.values[number] = value_MHD.new_zeros(self.size, value_MHD.shape[1], self.columns, value_MHD.shape[2])
        return self.keys[number], self.values[number]

    def copy(self, other: "Block", rows: Sequence[int], from_rows: Sequence[int], columns: int) -> None:
        """Take the first columns of some rows of another block, or of this one."""
        to, of = _Index(rows), _Index(from_rows)
        for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
            for number, buffer in theirs.items():
                if number not in mine:
                    mine[number] = buffer.new_zeros(self.size, buffer.shape[1], self.columns, buffer.shape[3])
                mine[number][to.on(buffer.device), :, :columns] = buffer[of.on(buffer.device), :, :columns]

    def exchange(self, rows: Sequence[int], others: Sequence[int]) -> None:
        """Swap rows with others."""
        to, of = _Index([*rows, *others]), _Index([*others, *rows])
        for buffer in self.buffers:
            buffer[to.on(buffer.device)] = buffer[of.on(buffer.device)]

    def reserve(self, columns: int) -> None:
        """See to it that there are so many columns."""
        if columns <= self.columns:
            return
        before, self.columns = self.columns, _round_up(max(columns, self.columns + self.columns // 4))
        for buffers in (self.keys, self.values):
            for number, buffer in buffers.items():
                longer = buffer.new_zeros(self.size, buffer.shape[1], self.columns, buffer.shape[3])
                longer[:, :, :before] = buffer
                buffers[number] = longer


@dataclass
class Reading:
    """Tokens that a block reads in one pass, row after row: at least one for each of some rows from `first` on."""

    block: Block
    first: int
    rows: int
    #: By token: its row, counted from `first`, and its position there.
    rows_M: torch.Tensor
    positions_M: torch.Tensor
    #: Columns to look at: at least the last position + 1.
    columns: int
    #: Most tokens of one row.
    width: int
    _masks: dict[torch.dtype, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.columns = _round_up(self.columns)

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
            if self.width == 1:
                seen = columns_T <= self.positions_M[:, None, None, None]
            else:
                positions_RN = self.positions_M.new_zeros(self.rows, self.width)
                positions_RN[self.rows_M, self._slots_M] = self.positions_M
                seen = (columns_T <= positions_RN[:, None, :, None]).repeat(1, 1, groups, 1)
            nothing = torch.zeros((), dtype=dtype, device=device)
            self._masks[dtype] = torch.where(seen, nothing, float("-inf"))
        return self._masks[dtype]

    def attend(
        self, layer: int, query_MHD: torch.Tensor, key_MKD: torch.Tensor, value_MKD: torch.Tensor, scale: float | None
    ) -> torch.Tensor:
        """Write the tokens' keys and values down, and attend to all of their rows up to them. Heads K, H = K x G."""
        window = slice(self.first, self.first + self.rows), slice(None), slice(self.columns)
        keys_RKTD, values_RKTD = (buffer[window] for buffer in self.block.layer(layer, key_MKD, value_MKD))
        keys_RKTD[self.rows_M, :, self.positions_M] = key_MKD
        values_RKTD[self.rows_M, :, self.positions_M] = value_MKD
        (tokens, heads, size), kept = query_MHD.shape, keys_RKTD.shape[1]
        groups = heads // kept
        mask = self._mask(query_MHD.dtype, groups)
        # The heads that share keys stand where tokens stand: each key is read once, and none is copied.
        if self.width == 1:
            query = query_MHD.reshape(tokens, kept, groups, size)
            out = scaled_dot_product_attention(query, keys_RKTD, values_RKTD, attn_mask=mask, scale=scale)
            return out.reshape(tokens, heads, -1)
        query = query_MHD.new_zeros(self.rows, self.width, kept, groups, size)
        query[self.rows_M, self._slots_M] = query_MHD.reshape(tokens, kept, groups, size)
        query = query.permute(0, 2, 3, 1, 4).reshape(self.rows, kept, groups * self.width, size)
        out = scaled_dot_product_attention(query, keys_RKTD, values_RKTD, attn_mask=mask, scale=scale)
        out = out.view(self.rows, kept, groups, self.width, -1).permute(0, 3, 1, 2, 4)
        return out[self.rows_M, self._slots_M].reshape(tokens, heads, -1)


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed: Sequence[Reading] | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it, for a line of tokens that belong to many rows: [1, heads, tokens, size]."""
    special = [name for name in _SPECIAL if options.get(name) is not None]
    if packed is None:
        raise CannotPack(
            f"{type(module).__name__} was not told which rows to read: its model does not pass arguments on, or was "
            "called while an engine writes with it in another thread"
        )
    if attention_mask is not None or special or query.device != packed[0].rows_M.device:
        raise CannotPack(f"{type(module).__name__} asks for {special or 'a mask'}, or is on another device")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    query_MHD, key_MKD, value_MKD = (states[0].transpose(0, 1) for states in (query, key, value))
    parts = []
    start = 0
    for reading in packed:
        span = slice(start, start := start + len(reading.rows_M))
        parts.append(reading.attend(layer, query_MHD[span], key_MKD[span], value_MKD[span], scaling))
    return torch.cat(parts)[None], None


AttentionInterface.register(PACKED, packed_attention)


def read(model: Any, ids_M: torch.Tensor, readings: Sequence[Reading], ends: torch.Tensor | int) -> torch.Tensor:
    """One pass over a line of tokens; the logits at `ends` (0: everywhere)."""
    positions_M = torch.cat([reading.positions_M for reading in readings])
    output = model(
        input_ids=ids_M[None],
        position_ids=positions_M[None],
        use_cache=False,
        logits_to_keep=ends,
        packed=readings,
    )
    if not readings[0].block.keys:
        raise CannotPack(f"{type(model).__name__} does not use transformers' attention interface")
    logits: torch.Tensor = output.logits[0]
    return logits


def core_of(model: nn.Module) -> PreTrainedModel | None:
    """The transformers model within wrappers such as peft's."""
    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)


def can_pack(model: nn.Module) -> bool:
    """Whether the model says that it takes attention functions of others, and has plain attention in every layer."""
    core = core_of(model)
    if core is None or not core._supports_attention_backend:
        return False
    layers = DynamicCache(config=core.config.get_text_config()).layers
    return all(type(layer) is DynamicLayer for layer in layers)


@contextmanager
def packing(model: nn.Module) -> Iterator[None]:
    """Within, the model attends by `packed_attention`. Afterwards as before."""
    core = core_of(model)
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


def _round_up(columns: int) -> int:
    return -(-columns // COLUMNS) * COLUMNS
