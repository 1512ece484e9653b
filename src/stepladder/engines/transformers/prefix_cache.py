"""Prefix cache with dense buffers: the KV cache of recent transcripts, within a memory limit.

In: dense KV caches and the token sequences in their rows. Out: for the tokens of a request, the cached row with the
longest common prefix, and its length. The next step of a transcript, and the children of a search node, then prefill
only new tokens.

Caches are evicted whole, least recently used first. They are valid for the weights that computed them:
`weights_fingerprint` detects changes.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from stepladder.core.memory import SizedCache, cache_bytes
from stepladder.engines.transformers.packed_attention import DenseKVCache

#: Prefixes are hashed at multiples of this many tokens; from there, tokens are compared.
STRIDE = 16
#: Integer dtypes by size in bytes.
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The first `length` columns of a cached row."""

    kv_cache: DenseKVCache
    row: int
    length: int


class PrefixCache(SizedCache):
    """KV caches by the prefixes of their rows. With a capacity of 0 bytes it stays empty."""

    def __init__(self, capacity: int | None = None) -> None:
        """`capacity` in bytes; by default its share of the memory for caches."""
        super().__init__(cache_bytes("prefixes") if capacity is None else capacity)
        #: Least recently used first; for each cache, the tokens of its readable rows by row index.
        self._caches: OrderedDict[DenseKVCache, dict[int, Sequence[int]]] = OrderedDict()
        self._index: dict[int, tuple[DenseKVCache, int]] = {}
        #: Bytes of each cache when a row was last added; recomputing their sum is slow.
        self._sizes: dict[DenseKVCache, int] = {}

    def __len__(self) -> int:
        return len(self._caches)

    def find(self, tokens: Sequence[int]) -> PrefixMatch | None:
        """A cached row that shares a prefix with these tokens: the longest one, to within a few tokens."""
        for key in reversed(list(_keys(tokens))):
            if key not in self._index:
                continue
            kv_cache, row = self._index[key]
            length = _common_length(self._caches[kv_cache][row], tokens)
            if length:  # otherwise a hash collision
                self._caches.move_to_end(kv_cache)
                return PrefixMatch(kv_cache, row, length)
        return None

    def add(self, kv_cache: DenseKVCache, rows: Mapping[int, Sequence[int]]) -> None:
        """Add rows of a cache, which hold these tokens; evict others while over capacity."""
        size = kv_cache.bytes
        if not rows or (size > self.capacity and kv_cache not in self._sizes):
            return
        self.bytes += size - self._sizes.get(kv_cache, 0)
        self._sizes[kv_cache] = size
        self._caches.setdefault(kv_cache, {}).update(rows)
        self._caches.move_to_end(kv_cache)
        for row, tokens in rows.items():
            for key in _keys(tokens):
                self._index[key] = (kv_cache, row)
        while self.overfull():
            self._drop(next(iter(self._caches)))

    def _drop(self, kv_cache: DenseKVCache) -> None:
        self.bytes -= self._sizes.pop(kv_cache)
        for tokens in self._caches.pop(kv_cache).values():
            for key in _keys(tokens):
                if key in self._index and self._index[key][0] is kv_cache:
                    del self._index[key]

    def clear(self) -> None:
        """Evict everything."""
        self._caches.clear()
        self._index.clear()
        self._sizes.clear()
        self.bytes = 0

    close = clear  # the memory is owned by the entries


def _keys(tokens: Sequence[int]) -> Iterator[int]:
    """A hash of every prefix whose length is a multiple of the stride, shortest first."""
    key = 0
    for end in range(STRIDE, len(tokens) + 1, STRIDE):
        key = hash((key, *tokens[end - STRIDE : end]))
        yield key


def _common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the common prefix of two sequences."""
    shorter = min(len(a), len(b))
    if list(a[:shorter]) == list(b[:shorter]):
        return shorter
    return next(index for index in range(shorter) if a[index] != b[index])


def weights_fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """Changes whenever the model may compute something else: an optimizer step, loaded weights, an adapter switched on
    or off, another scale or precision (autocast).

    In-place changes increment a tensor's version. Changes through `tensor.data` do not, but they change the sum of its
    bits (unless values are permuted), which takes about as long to compute as one token.
    """
    weights = list(model.parameters())
    bits = torch.stack([_bit_sum(each).to(weights[0].device) for each in weights]).tolist()
    return *weight_versions(model), tuple(bits)


def weight_versions(model: nn.Module) -> tuple[Any, ...]:
    """The same without reading the weights: does not detect changes through `tensor.data`."""
    return _layout(model), tuple(-1 if each.is_inference() else each._version for each in model.parameters())


def layout_fingerprint(model: nn.Module) -> tuple[Any, ...]:
    """Equal as long as the model computes the same function of weights at the same addresses, whatever their values."""
    hooks = [(*each._forward_pre_hooks, *each._forward_hooks) for each in model.modules()]
    return *_layout(model), tuple(hooks)


def _layout(model: nn.Module) -> tuple[Any, ...]:
    tensors = [*model.parameters(), *model.buffers()]
    modules: list[Any] = list(model.modules())
    adapters = [  # PEFT layers
        (each.disable_adapters, *each.active_adapters, *each.merged_adapters, str(getattr(each, "scaling", "")))
        for each in modules
        if isinstance(getattr(each, "disable_adapters", None), bool)
    ]
    device = tensors[0].device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    forward = vars(model).get("forward")  # set by a trainer; may convert dtypes
    return (
        tuple((each.data_ptr(), each.dtype, each.shape, each.device) for each in tensors),
        tuple(adapters),
        precision,
        id(forward) if forward else None,
    )


def _bit_sum(weights: torch.Tensor) -> torch.Tensor:
    """The sum of a tensor read as integers, modulo 2**64: any change of a single value changes it, in any precision."""
    flat = weights.detach().reshape(-1)
    aligned = flat.nbytes % 8 == 0 and flat.storage_offset() * flat.element_size() % 8 == 0
    return flat.view(torch.int64 if aligned else _INTEGERS[flat.element_size()]).sum()
