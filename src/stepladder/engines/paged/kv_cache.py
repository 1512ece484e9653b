"""Paged KV cache: keys and values on a GPU in fixed-size pages, shared between sequences with a common prefix.

In: tokens. Out: the cached pages of their prefix, and free pages for the rest. Each row has a list of pages (its page
table), so memory grows with its tokens, nothing is moved when rows join or finish, and common prefixes are stored once.
Pages of finished rows stay cached until the memory is needed: the next step of a transcript, and the children of a
search node, prefill only new tokens.

Cached pages are valid for the weights that computed them; call `clear` when the weights change.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from stepladder.engines.base import EngineOutOfMemory
from stepladder.engines.paged.paged_attention import is_supported, paged_attention, store_pages, tiles_of
from stepladder.engines.transformers.packed_attention import AttentionBatch, fits
from stepladder.models.gpu_memory import free_bytes, shared_bytes

#: Tokens per page.
PAGE_SIZE = 16
#: Padding rows write here. It is never read.
NULL_PAGE = 0
#: The share of a GPU's memory for pages, limited to this share of what is free.
SHARE, _FREE_SHARE = 3 / 8, 0.8
#: Lower limit when the cache shrinks.
_MIN_PAGES = 256
#: The parent of the first page of a sequence.
_ROOT = -1


def pages_for(tokens: int) -> int:
    """The number of pages for a number of tokens.

    >>> [pages_for(tokens) for tokens in (1, 16, 17)]
    [1, 1, 2]
    """
    return -(-tokens // PAGE_SIZE)


def page_table(pages: Sequence[Sequence[int]], width: int = 0) -> torch.Tensor:
    """Lists of pages as one table, padded with the null page."""
    table = np.full((len(pages), max(width, *map(len, pages))), NULL_PAGE)
    for row, own in zip(table, pages):
        row[: len(own)] = own
    return torch.from_numpy(table)


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token, from a model's config."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return 2 * int(config.num_hidden_layers) * int(kv_heads) * int(size) * dtype.itemsize


def make_paged_kv_cache(device: torch.device, config: Any, dtype: torch.dtype, capacity: int | None) -> "PagedKVCache":
    """The cache of a model, with 3/8 of our share of the GPU's memory."""
    return PagedKVCache(device, kv_bytes_per_token(config, dtype), int(shared_bytes(device) * SHARE), capacity)


class PagedKVCache:
    """Allocates pages with reference counts, and finds cached pages by their tokens (a prefix tree)."""

    def __init__(self, device: torch.device, token_bytes: int, budget: int, capacity: int | None = None) -> None:
        """`budget`: bytes of all pages. `capacity`: maximum bytes of cached pages that no row uses."""
        self.device = device
        self.page_bytes = token_bytes * PAGE_SIZE
        self.budget = budget
        self.capacity = budget if capacity is None else capacity
        #: Incremented when buffers are freed or replaced: CUDA graphs of the old buffers are invalid.
        self.epoch = 0
        #: Incremented by `clear`: pages that running rows filled before it must not be cached.
        self.clear_count = 0
        self._reset()

    def _reset(self) -> None:
        #: By layer: keys and values of [pages, heads, tokens, head size].
        self.layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._free: list[int] = []
        self.num_pages = 0
        #: Whether to allocate fewer pages as soon as no row uses any.
        self._shrink_pending = False
        #: Reference count of each page. Cached pages with count 0, in the order of eviction.
        self._ref_counts: list[int] = []
        self._evictable: OrderedDict[int, None] = OrderedDict()
        #: Cached pages by key (parent page, tokens); the key of each page, and its child pages.
        self._page_by_key: dict[tuple[int, tuple[int, ...]], int] = {}
        self._key_by_page: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._children: dict[int, set[int]] = {}

    @property
    def bytes(self) -> int:
        """Bytes of cached pages that no row uses."""
        return len(self._evictable) * self.page_bytes

    def __len__(self) -> int:
        return len(self._evictable)

    # --- pages of rows ----------------------------------------------------------------------------------------

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The cached pages of the longest prefix of these tokens. The caller holds a reference to them."""
        found: list[int] = []
        parent = _ROOT
        for start in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            page = self._page_by_key.get((parent, tuple(tokens[start : start + PAGE_SIZE])))
            if page is None:
                break
            found.append(page)
            parent = page
        for page in found:
            self._ref_counts[page] += 1
            self._evictable.pop(page, None)
        return found

    @property
    def available(self) -> int:
        """Number of pages that no row uses."""
        self._ensure_sized()
        return len(self._free) + len(self._evictable)

    @property
    def max_tokens(self) -> int:
        """Number of tokens that fit, if one row uses all pages."""
        self._ensure_sized()
        return (self.num_pages - 1) * PAGE_SIZE

    def allocate(self, count: int) -> list[int]:
        """Allocate free pages; evicts the least recently used cached pages if needed."""
        if count > self.available:
            raise EngineOutOfMemory(f"{count} pages requested, {self.available} of {self.num_pages} are free")
        while len(self._free) < count:
            self._evict(next(iter(self._evictable)))
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._ref_counts[page] = 1
        return taken

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Cache the full pages of these tokens. Pages whose tokens are already cached are skipped."""
        if not self.capacity:
            return
        parent = _ROOT
        for index, page in enumerate(pages[: len(tokens) // PAGE_SIZE]):
            key = parent, tuple(tokens[index * PAGE_SIZE : (index + 1) * PAGE_SIZE])
            cached = self._page_by_key.setdefault(key, page)
            if cached == page and page not in self._key_by_page:
                self._key_by_page[page] = key
                self._children.setdefault(parent, set()).add(page)
            parent = cached

    def release(self, pages: Sequence[int]) -> None:
        """Drop a row's references. Cached pages stay until evicted, the end of a sequence first."""
        for page in reversed(pages):
            self._ref_counts[page] -= 1
            if self._ref_counts[page]:
                continue
            if page in self._key_by_page:
                self._evictable[page] = None
            else:
                self._free.append(page)
        while self.bytes > self.capacity:
            self._evict(next(iter(self._evictable)))

    @torch.inference_mode()
    def discard(self, rows: list[list[int]]) -> None:
        """Release the pages of failed rows without caching them, and clear the cache.

        Their contents are zeroed: NaNs would spread to the next rows that use these pages.
        """
        if not rows:
            return
        self.clear()
        released = {NULL_PAGE, *(page for pages in rows for page in pages)}
        while rows:
            self.release(rows.pop())
        unreferenced = torch.tensor([page for page in released if not self._ref_counts[page]], device=self.device)
        for buffers in self.layers.values():
            for buffer in buffers:
                buffer[unreferenced] = 0

    def _evict(self, page: int) -> None:
        """Evict a page and all its descendants."""
        pending = [page]
        while pending:
            page = pending.pop()
            pending += self._children.pop(page, ())
            key = self._key_by_page.pop(page)
            del self._page_by_key[key]
            if key[0] in self._children:
                self._children[key[0]].discard(page)
            if self._evictable.pop(page, self) is None:
                self._free.append(page)

    def clear(self) -> None:
        """Evict all cached pages; pages in use are no longer shared with new rows."""
        self.clear_count += 1
        self._free += self._evictable
        self._evictable.clear()
        self._page_by_key.clear()
        self._key_by_page.clear()
        self._children.clear()

    def close(self) -> None:
        """Clear the cache, and free the memory unless rows are running."""
        self.clear()
        if not self._in_use():
            self._free_buffers()

    def _in_use(self) -> bool:
        return any(self._ref_counts)

    def _free_buffers(self) -> None:
        if self.layers:
            self.epoch += 1
        self._reset()

    # --- buffers ----------------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Halve the number of pages, as soon as no row uses any."""
        if self.num_pages:
            pages = max(self.num_pages // 2, min(self.num_pages, _MIN_PAGES))
            self.budget, self._shrink_pending = pages * self.page_bytes, True

    def _ensure_sized(self) -> None:
        """Determine the number of pages, if not done yet."""
        if self._shrink_pending and not self._in_use():
            self._free_buffers()
        if self.num_pages:
            return
        budget = self.budget
        if self.device.type == "cuda":
            budget = min(budget, int(free_bytes(self.device) * _FREE_SHARE))
        self.num_pages = max(budget // self.page_bytes, 2)
        self._ref_counts = [0] * self.num_pages
        self._free = list(range(self.num_pages - 1, NULL_PAGE, -1))

    @property
    def has_kernels(self) -> bool:
        """Whether attention takes rows of any lengths at once, without padding or copies: not before the first pass."""
        keys_values = next(iter(self.layers.values()), None)
        return keys_values is not None and is_supported(keys_values[0], *keys_values)

    def layer(self, index: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a layer, allocated when its first ones arrive."""
        if not all(map(fits, self.layers.get(index, ()), (key_MKD, value_MKD))) or index not in self.layers:
            self._allocate_layer(index, key_MKD, value_MKD)
        return self.layers[index]

    def _allocate_layer(self, layer: int, *key_values: torch.Tensor) -> None:
        if self.layers.pop(layer, None) is not None:
            self.epoch += 1  # another precision from now on
        # Zeros: slots beyond a row's end are read with weight 0, and 0 * nan would be nan.
        key, value = (each.new_zeros(self.num_pages, each.shape[1], PAGE_SIZE, each.shape[2]) for each in key_values)
        self.layers[layer] = key, value


@dataclass
class PagedAttentionBatch(AttentionBatch):
    """Tokens of rows with a paged KV cache."""

    cache: PagedKVCache
    #: The page table: the pages of each row, in order.
    table_RP: torch.Tensor
    #: The number of tokens of each row, if one has several.
    sizes: Sequence[int] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._tiles_3X: torch.Tensor | None = None

    @cached_property
    def _pages_M(self) -> torch.Tensor:
        return self.table_RP[self.rows_M, self.positions_M // PAGE_SIZE]

    @cached_property
    def _offsets_M(self) -> torch.Tensor:
        return self.positions_M % PAGE_SIZE

    @cached_property
    def _visible_RP(self) -> torch.Tensor:
        """The pages to attend to."""
        return self.table_RP[:, : pages_for(self.columns)]

    def write(self, layer: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:
        """Write the tokens' keys and values of a layer."""
        buffers, states = self.cache.layer(layer, key_MKD, value_MKD), (key_MKD, value_MKD)
        if not store_pages(*states, *buffers, self.table_RP, self.rows_M, self.positions_M):
            for buffer, states_MKD in zip(buffers, states):
                buffer[self._pages_M, :, self._offsets_M] = states_MKD

    def key_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of the rows, gathered from their pages."""
        first, second = (buffer[self._visible_RP].transpose(1, 2).flatten(2, 3) for buffer in self.cache.layers[layer])
        return first, second

    def attend(self, layer: int, query_MHD: torch.Tensor, scale: float | None) -> torch.Tensor:
        """Attention by a kernel that stops at the length of each row, if available."""
        keys_NKTD, values_NKTD = self.cache.layers[layer]
        if self._tiles_3X is None and self.max_query_len > 1:
            groups = query_MHD.shape[1] // keys_NKTD.shape[1]
            self._tiles_3X = tiles_of(self.sizes, groups, query_MHD.device)
        tokens = self.table_RP, self.rows_M, self.positions_M
        out_MHD = paged_attention(query_MHD, keys_NKTD, values_NKTD, *tokens, scale, self._tiles_3X)
        if out_MHD is None:
            return super().attend(layer, query_MHD, scale)
        self.attended = True
        return out_MHD
