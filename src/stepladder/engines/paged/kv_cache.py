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
from stepladder.models.gpu_memory import free_bytes, own_bytes

#: Tokens of a page.
PAGE_SIZE = 16
#: Where rows that nobody asked for write. Nobody reads it.
NULL_PAGE = 0
#: The share of a GPU's memory that pages take, unless that is more than this share of what is free.
SHARE, _OF_FREE = 3 / 8, 0.8
#: Fewer pages do not help.
_LEAST = 256
#: What the first page of a transcript comes behind.
_START = -1


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
    kept = getattr(config, "num_key_value_heads", None) or heads
    return 2 * int(config.num_hidden_layers) * int(kept) * int(size) * dtype.itemsize


def make_paged_kv_cache(device: torch.device, config: Any, dtype: torch.dtype, prefix_bytes: int | None) -> "PagedKVCache":
    """The store for a model, with three eighths of what a GPU has for us."""
    return PagedKVCache(device, kv_bytes_per_token(config, dtype), int(own_bytes(device) * SHARE), prefix_bytes)


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
        self.forgotten = 0
        self._reset()

    def _reset(self) -> None:
        #: By layer: keys and values of [pages, heads, tokens, head size].
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._free: list[int] = []
        self.total = 0
        #: Whether there was no memory for all of them: fewer are made as soon as no row has any.
        self._too_many = False
        #: How many rows have each page. Those that none has, but that are known, in the order in which they will go.
        self._users: list[int] = []
        self._kept: OrderedDict[int, None] = OrderedDict()
        #: Known pages, by the page before them and their tokens; for each its name, and the pages behind it.
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}
        self._names: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._behind: dict[int, set[int]] = {}

    @property
    def bytes(self) -> int:
        """What is kept of rows that have ended."""
        return len(self._kept) * self.page_bytes

    def __len__(self) -> int:
        return len(self._kept)

    # --- pages of rows ----------------------------------------------------------------------------------------

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The pages that hold the beginning of these tokens, as far as it is known; the caller has them from now on."""
        found: list[int] = []
        before = _START
        for start in range(0, len(tokens) - PAGE_SIZE + 1, PAGE_SIZE):
            page = self._known.get((before, tuple(tokens[start : start + PAGE_SIZE])))
            if page is None:
                break
            found.append(page)
            before = page
        for page in found:
            self._users[page] += 1
            self._kept.pop(page, None)
        return found

    @property
    def available(self) -> int:
        """How many pages no row has."""
        self._begin()
        return len(self._free) + len(self._kept)

    @property
    def tokens(self) -> int:
        """How many tokens there is room for, if one row has all of it."""
        self._begin()
        return (self.total - 1) * PAGE_SIZE

    def take(self, count: int) -> list[int]:
        """Pages that hold nothing; those that were kept for longest are given up for them."""
        if count > self.available:
            raise EngineOutOfMemory(f"of {self.total} pages of {PAGE_SIZE} tokens {self.available} are left")
        while len(self._free) < count:
            self._unlearn(next(iter(self._kept)))
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._users[page] = 1
        return taken

    def learn(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Let the pages that are full be found by others. Pages that hold what is known already are left out."""
        if not self.capacity:
            return
        before = _START
        for place, page in enumerate(pages[: len(tokens) // PAGE_SIZE]):
            name = before, tuple(tokens[place * PAGE_SIZE : (place + 1) * PAGE_SIZE])
            known = self._known.setdefault(name, page)
            if known == page and page not in self._names:
                self._names[page] = name
                self._behind.setdefault(before, set()).add(page)
            before = known

    def release(self, pages: Sequence[int]) -> None:
        """A row gives its pages up. Those that are known are kept, the end of a transcript the least long."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._names:
                self._kept[page] = None
            else:
                self._free.append(page)
        while self.bytes > self.capacity:
            self._unlearn(next(iter(self._kept)))

    @torch.inference_mode()
    def discard(self, rows: list[list[int]]) -> None:
        """Rows that came to no good end, if there are any, give their pages up; nothing that these hold is read again.

        What is not a number is not left in them either: it would show in all who have these pages next.
        """
        if not rows:
            return
        self.forget()
        given_up = {NULL_PAGE, *(page for pages in rows for page in pages)}
        while rows:
            self.release(rows.pop())
        nobodys = torch.tensor([page for page in given_up if not self._users[page]], device=self.device)
        for buffers in self._layers.values():
            for buffer in buffers:
                buffer[nobodys] = 0

    def _unlearn(self, page: int) -> None:
        """Forget a page and all that come behind it."""
        todo = [page]
        while todo:
            page = todo.pop()
            todo += self._behind.pop(page, ())
            name = self._names.pop(page)
            del self._known[name]
            if name[0] in self._behind:
                self._behind[name[0]].discard(page)
            if self._kept.pop(page, self) is None:
                self._free.append(page)

    def forget(self) -> None:
        """Forget all that is known: nobody begins with it any more."""
        self.forgotten += 1
        self._free += self._kept
        self._kept.clear()
        self._known.clear()
        self._names.clear()
        self._behind.clear()

    def close(self) -> None:
        """Forget all, and give the memory back unless rows are under way."""
        self.forget()
        if not self._under_way():
            self._give_up()

    def _under_way(self) -> bool:
        return any(self._users)

    def _give_up(self) -> None:
        if self._layers:
            self.epoch += 1
        self._reset()

    # --- their memory -----------------------------------------------------------------------------------------

    def shrink(self) -> None:
        """Have half as many pages, as soon as no row has any."""
        if self.total:
            self.budget, self._too_many = max(self.total // 2, min(self.total, _LEAST)) * self.page_bytes, True

    def _begin(self) -> None:
        """Decide how many pages there are, unless that is known."""
        if self._too_many and not self._under_way():
            self._give_up()
        if self.total:
            return
        budget = self.budget
        if self.device.type == "cuda":
            budget = min(budget, int(free_bytes(self.device) * _OF_FREE))
        self.total = max(budget // self.page_bytes, 2)
        self._users = [0] * self.total
        self._free = list(range(self.total - 1, NULL_PAGE, -1))

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
            self._make(layer, key_MKD, value_MKD)
        for buffer, states_MKD in zip(self._layers[layer], (key_MKD, value_MKD)):
            buffer[pages_M, :, offsets_M] = states_MKD

    def _make(self, layer: int, *states: torch.Tensor) -> None:
        if self._layers.pop(layer, None) is not None:
            self.epoch += 1  # in another precision from now on
        # Zeros, since what is beyond a row's end is read, if with no weight: 0 * nan would be nan.
        key, value = (each.new_zeros(self.total, each.shape[1], PAGE_SIZE, each.shape[2]) for each in states)
        self._layers[layer] = key, value

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values of a layer."""
        return self._layers[number]


@dataclass
class PagedAttentionBatch(AttentionBatch):
    """Tokens that are read in one pass by rows whose keys and values are in pages."""

    store: PagedKVCache
    #: The pages of each row, in order.
    table_RP: torch.Tensor

    @cached_property
    def _pages_M(self) -> torch.Tensor:
        return self.table_RP[self.rows_M, self.positions_M // PAGE_SIZE]

    @cached_property
    def _offsets_M(self) -> torch.Tensor:
        return self.positions_M % PAGE_SIZE

    @cached_property
    def _seen_RP(self) -> torch.Tensor:
        """The pages that are looked at."""
        return self.table_RP[:, : pages_for(self.columns)]

    def write(self, layer: int, layers: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:  # noqa: ARG002
        """Write the tokens' keys and values down."""
        self.store.write(layer, key_MKD, value_MKD, self._pages_M, self._offsets_M)

    def expect_like(self, layer: int, key_MKD: torch.Tensor, value_MKD: torch.Tensor) -> None:
        """Raise where such keys and values are not what the pages of a layer hold."""
        if not all(map(fits, self.store.layer(layer), (key_MKD, value_MKD))):
            raise ValueError(f"layer {layer} makes other keys or values than before")

    def places(self, layer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where keys and values of a layer lie, and by token the page and the place in it."""
        return *self.store.layer(layer), self._pages_M, self._offsets_M

    def states(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the rows look at, copied together."""
        first, second = (buffer[self._seen_RP].transpose(1, 2).flatten(2, 3) for buffer in self.store.layer(layer))
        return first, second

    def attend_one(self, layer: int, query_MHD: torch.Tensor, scale: float | None) -> torch.Tensor | None:
        """By a kernel that looks at each row as far as it goes, where there is one."""
        return decode_attention(query_MHD, *self.store.layer(layer), self.table_RP, self.positions_M, scale)
