"""Keys and values of transcripts on a GPU, in pages of a few tokens that are written once and shared by all who can.

In: tokens. Out: the pages that hold what is known of their beginning, and free ones for the rest. A row that writes has
a list of pages, so no row takes more room than it has tokens, nothing is moved when rows join or end, and transcripts
that begin alike have the same pages. Pages of rows that have ended stay until others need them: the next step of a
transcript, and the children of a node of a search tree, read only what is new.

Keys and values are valid for the weights that made them; whoever changes these calls `forget`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from stepladder.engines.base import EngineOutOfMemory
from stepladder.engines.paged.paged_attention import decode_attention
from stepladder.engines.transformers.packed_attention import AttentionBatch, fits
from stepladder.models.gpu_memory import free_bytes, shared_bytes

#: Tokens of a page.
PAGE_SIZE = 16
#: Where rows that nobody asked for write. Nobody reads it.
NULL_PAGE = 0
#: The share of a GPU's memory that pages take, unless that is more than this share of what is free.
SHARE, _FREE_SHARE = 3 / 8, 0.8
#: Fewer pages do not help.
_MIN_PAGES = 256
#: What the first page of a transcript comes behind.
_ROOT = -1


def pages_for(tokens: int) -> int:
    """How many pages some tokens take.

    >>> [pages_for(tokens) for tokens in (1, 16, 17)]
    [1, 1, 2]
    """
    return -(-tokens // PAGE_SIZE)


def page_table(pages: Sequence[Sequence[int]], width: int = 0) -> torch.Tensor:
    """Lists of pages as one table."""
    table = np.full((len(pages), max(width, *map(len, pages))), NULL_PAGE)
    for row, own in zip(table, pages):
        row[: len(own)] = own
    return torch.from_numpy(table)


def kv_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """What the keys and values of a token take, by the configuration of a model."""
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return 2 * int(config.num_hidden_layers) * int(kv_heads) * int(size) * dtype.itemsize


def make_paged_kv_cache(
    device: torch.device, config: Any, dtype: torch.dtype, prefix_bytes: int | None
) -> "PagedKVCache":
    """The store for a model, with three eighths of what a GPU has for us."""
    return PagedKVCache(device, kv_bytes_per_token(config, dtype), int(shared_bytes(device) * SHARE), prefix_bytes)


class PagedKVCache:
    """Pages by the tokens that they hold, and those that are free."""

    def __init__(self, device: torch.device, token_bytes: int, budget: int, capacity: int | None = None) -> None:
        """`budget`: bytes of all pages. `capacity`: bytes of those that may be kept of rows that have ended."""
        self.device = device
        self.page_bytes = token_bytes * PAGE_SIZE
        self.budget = budget
        self.capacity = budget if capacity is None else capacity
        #: Counts up when memory that was handed out is given up: what was recorded of it is of no use then.
        self.epoch = 0
        #: Counts up when all is forgotten: what rows that began before have read is of no use to others.
        self.clear_count = 0
        self._reset()

    def _reset(self) -> None:
        #: By layer: keys and values of [pages, heads, tokens, head size].
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._free: list[int] = []
        self.num_pages = 0
        #: Whether there was no memory for all of them: fewer are made as soon as no row has any.
        self._shrink_pending = False
        #: How many rows have each page. Those that none has, but that are known, in the order in which they will go.
        self._ref_counts: list[int] = []
        self._evictable: OrderedDict[int, None] = OrderedDict()
        #: Known pages, by the page before them and their tokens; for each its name, and the pages behind it.
        self._page_by_key: dict[tuple[int, tuple[int, ...]], int] = {}
        self._key_by_page: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._children: dict[int, set[int]] = {}

    @property
    def bytes(self) -> int:
        """What is kept of rows that have ended."""
        return len(self._evictable) * self.page_bytes

    def __len__(self) -> int:
        return len(self._evictable)

    # --- pages of rows ----------------------------------------------------------------------------------------

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The pages that hold the beginning of these tokens, as far as it is known; the caller has them from now on."""
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
        """How many pages no row has."""
        self._ensure_sized()
        return len(self._free) + len(self._evictable)

    @property
    def max_tokens(self) -> int:
        """How many tokens there is room for, if one row has all of it."""
        self._ensure_sized()
        return (self.num_pages - 1) * PAGE_SIZE

    def allocate(self, count: int) -> list[int]:
        """Pages that hold nothing; those that were kept for longest are given up for them."""
        if count > self.available:
            raise EngineOutOfMemory(f"of {self.num_pages} pages of {PAGE_SIZE} tokens {self.available} are left")
        while len(self._free) < count:
            self._evict(next(iter(self._evictable)))
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._ref_counts[page] = 1
        return taken

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Let the pages that are full be found by others. Pages that hold what is known already are left out."""
        if not self.capacity:
            return
        parent = _ROOT
        for index, page in enumerate(pages[: len(tokens) // PAGE_SIZE]):
            key = parent, tuple(tokens[index * PAGE_SIZE : (index + 1) * PAGE_SIZE])
            known = self._page_by_key.setdefault(key, page)
            if known == page and page not in self._key_by_page:
                self._key_by_page[page] = key
                self._children.setdefault(parent, set()).add(page)
            parent = known

    def release(self, pages: Sequence[int]) -> None:
        """A row gives its pages up. Those that are known are kept, the end of a transcript the least long."""
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
        """Rows that came to no good end, if there are any, give their pages up; nothing that these hold is read again.

        What is not a number is not left in them either: it would show in all who have these pages next.
        """
        if not rows:
            return
        self.clear()
        released = {NULL_PAGE, *(page for pages in rows for page in pages)}
        while rows:
            self.release(rows.pop())
        unreferenced = torch.tensor([page for page in released if not self._ref_counts[page]], device=self.device)
        for buffers in self._layers.values():
            for buffer in buffers:
                buffer[unreferenced] = 0

    def _evict(self, page: int) -> None:
        """Forget a page and all that come behind it."""
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
        """Forget all that is known: nobody begins with it any more."""
        self.clear_count += 1
        self._free += self._evictable
        self._evictable.clear()
        self._page_by_key.clear()
        self._key_by_page.clear()
        self._children.clear()

    def close(self) -> None:
        """Forget all, and give the memory back unless rows are under way."""
        self.clear()
        if not self._in_use():
            self._free_buffers()

    def _in_use(self) -> bool:
        return any(self._ref_counts)

    def _free_buffers(self) -> None:
        if self._layers:
            self.epoch += 1
        self._reset()

    # --- their memory -----------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Have half as many pages, as soon as no row has any."""
        if self.num_pages:
            self.budget, self._shrink_pending = (
                max(self.num_pages // 2, min(self.num_pages, _MIN_PAGES)) * self.page_bytes,
                True,
            )

    def _ensure_sized(self) -> None:
        """Decide how many pages there are, unless that is known."""
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

    def write(
        self,
        layer: int,
        key_MKD: torch.Tensor,
        value_MKD: torch.Tensor,
        pages_M: torch.Tensor,
        offsets_M: torch.Tensor,
    ) -> None:
        """Keys and values of some tokens, each to its place in its page."""
        if not all(map(fits, self._layers.get(layer, ()), (key_MKD, value_MKD))) or layer not in self._layers:
            self._allocate_layer(layer, key_MKD, value_MKD)
        for buffer, states_MKD in zip(self._layers[layer], (key_MKD, value_MKD)):
            buffer[pages_M, :, offsets_M] = states_MKD

    def _allocate_layer(self, layer: int, *key_values: torch.Tensor) -> None:
        if self._layers.pop(layer, None) is not None:
            self.epoch += 1  # in another precision from now on
        # Zeros, since what is beyond a row's end is read, if with no weight: 0 * nan would be nan.
        key, value = (each.new_zeros(self.num_pages, each.shape[1], PAGE_SIZE, each.shape[2]) for each in key_values)
        self._layers[layer] = key, value

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of a layer."""
        return self._layers[number]


@dataclass
class PagedAttentionBatch(AttentionBatch):
    """Tokens that are read in one pass by rows whose keys and values are in pages."""

    cache: PagedKVCache
    #: The pages of each row, in order.
    table_RP: torch.Tensor

    @cached_property
    def _pages_M(self) -> torch.Tensor:
        return self.table_RP[self.rows_M, self.positions_M // PAGE_SIZE]

    @cached_property
    def _offsets_M(self) -> torch.Tensor:
        return self.positions_M % PAGE_SIZE

    @cached_property
    def _visible_RP(self) -> torch.Tensor:
        """The pages that are looked at."""
        return self.table_RP[:, : pages_for(self.columns)]

    def write(self, layer: int, layers: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:  # noqa: ARG002
        """Write the tokens' keys and values down."""
        self.cache.write(layer, key_MKD, value_MKD, self._pages_M, self._offsets_M)

    def check_layout(self, layer: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:
        """Raise where such keys and values are not what the pages of a layer hold."""
        if not all(map(fits, self.cache.layer(layer), (key_MKD, value_MKD))):
            raise ValueError(f"layer {layer} makes other keys or values than before")

    def write_targets(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where keys and values of a layer lie, and by token the page and the place in it."""
        return *self.cache.layer(layer), self._pages_M, self._offsets_M

    def key_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the rows look at, copied together."""
        first, second = (buffer[self._visible_RP].transpose(1, 2).flatten(2, 3) for buffer in self.cache.layer(layer))
        return first, second

    def attend_decode(self, layer: int, query_MHD: torch.Tensor, scale: float | None) -> torch.Tensor | None:
        """By a kernel that looks at each row as far as it goes, where there is one."""
        return decode_attention(query_MHD, *self.cache.layer(layer), self.table_RP, self.positions_M, scale)
