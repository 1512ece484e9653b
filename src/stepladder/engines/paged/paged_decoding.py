"""Decoding on a GPU: rows whose keys and values are in pages (`pages.py`), by passes that are recorded (`passes.py`).

`PooledDecoding` does what `decoding.PackedDecoding` does, with the same words. Rows that join share the pages of those
that began alike, and read the rest; those that have ended leave theirs to others. A row waits until there are pages for
what it may write.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any
from weakref import finalize

import torch

from stepladder.core.errors import BackendDown
from stepladder.engines.paged.cuda_graphs import Pool
from stepladder.engines.paged.kv_cache import PAGE_SIZE, PagedAttentionBatch, PagedKVCache, page_table, pages_for
from stepladder.engines.transformers.decoding import PASS_TOKENS, alike
from stepladder.engines.transformers.packed_attention import read
from stepladder.engines.transformers.sampling import Append, Row, Sampler

#: Pages that a row gets at a time for what it will write.
_AHEAD = 4
#: Tokens that a row is expected to write at most; with more of them, pages may run out.
_EXPECTED = 256
#: Most columns of all rows that attend together to what they have read: bounds the memory that this takes.
_SEEN = 2**18


class PooledDecoding:
    """Rows under way, those that write from the first place of a pool on."""

    #: What the next token of each row is drawn from, and what draws.
    logits_BV: torch.Tensor
    sampler: Sampler

    def __init__(self, model: Any, store: PagedKVCache, append: Append, idle: list[Pool]) -> None:
        """`idle`: pools that nobody uses; one is taken from there as long as rows are under way."""
        self.model, self.store, self.append, self.idle = model, store, append, idle
        self.device = store.device
        self.alive: list[Row] = []
        #: The pages of each row.
        self.pages: list[list[int]] = []
        self.pool: Pool | None = None
        #: What the store had forgotten when rows began: what they have read is not taught after it forgets more.
        self._forgotten = 0
        finalize(self, store.discard, self.pages)  # whatever ends this

    @property
    def rows(self) -> int:
        """How many rows are being written."""
        return len(self.alive)

    def close(self) -> None:
        """Give up rows under way, if there are any: something has failed."""
        if self.pages:
            self.store.discard(self.pages)
            self.alive, self.pool = [], None

    # --- rows that join ---------------------------------------------------------------------------------------

    def fitting(self, rows: Sequence[Row]) -> int:
        """How many of these, the first, have room beside those under way, and all of them for what they may write."""
        promised = sum(max(_wanted(row) - len(pages), 0) for row, pages in zip(self.alive, self.pages))
        room = self.store.available - promised
        needed = accumulate(map(_wanted, rows))  # a row that shares pages needs fewer, but who knows
        return sum(1 for _ in takewhile(lambda pages: pages <= room, needed))

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Let rows join: read what is new in their contexts."""
        pool = self._pool()
        rows = sorted(rows, key=lambda row: (len(row.tokens_in), row.tokens_in))
        before = len(self.alive)
        try:
            logits_BV = self._read_contexts(rows)
            pool.settle(self.model)
            pool.put(before, self.pages[before:], [len(row.tokens_in) - 1 for row in rows])
        except BaseException:
            new = self.pages[before:]
            del self.pages[before:]
            self.store.discard(new)  # what was promised there was perhaps not read
            raise
        sampler = Sampler(rows, self.device)
        if before:
            self.logits_BV = torch.cat([self.logits_BV, logits_BV])
            self.sampler.join(sampler)
        else:
            self.logits_BV, self.sampler = logits_BV, sampler
        self.alive += rows

    def _pool(self) -> Pool:
        """The one that rows are in; or else an idle one, or a new one."""
        if self.pool is not None and self.alive:
            if not self.pool.fits(self.model):
                raise BackendDown("the model was changed while it was writing")
            return self.pool
        if self.pool is None:
            self.pool = self.idle.pop() if self.idle else Pool(self.store, recording=self.store.capacity > 0)
        self._forgotten = self.store.forgotten
        if not self.pool.fits(self.model):
            self.pool.begin(self.model)
        return self.pool

    def _read_contexts(self, rows: Sequence[Row]) -> torch.Tensor:
        """Read what is new of each; the logits behind each."""
        pieces: list[tuple[int, range]] = []
        for place, row in enumerate(rows):
            context = row.tokens_in
            # The last token of a context is read in any case: its logits are needed.
            pages = self.store.find(context[:-1])
            self.pages.append(pages)
            known = len(pages) * PAGE_SIZE
            pages += self.store.take(pages_for(len(context) + min(row.limit, _AHEAD * PAGE_SIZE)) - len(pages))
            # Those who come behind may share what will have been read by then.
            self.store.learn(context, pages)
            pieces.append((place, range(known, len(context))))
        own = self.pages[-len(rows) :]
        parts, order = [], list[int]()
        for some in _passes(pieces, PASS_TOKENS.get(self.device.type, PASS_TOKENS["cuda"])):
            some.sort(key=lambda piece: len(piece[1]))
            parts.append(self._read_pieces(rows, own, some))
            order += [place for place, span in some if span.stop == len(rows[place].tokens_in)]
        logits_BV = torch.cat(parts)
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return logits_BV[back.to(self.device)]

    def _read_pieces(
        self, rows: Sequence[Row], pages: Sequence[Sequence[int]], pieces: Sequence[tuple[int, range]]
    ) -> torch.Tensor:
        """One pass over pieces, which come from short to long; the logits behind the contexts that end in it."""
        line = [token for place, span in pieces for token in rows[place].tokens_in[span.start : span.stop]]
        sizes = torch.tensor([len(span) for _, span in pieces])
        ended = torch.tensor([span.stop == len(rows[place].tokens_in) for place, span in pieces])
        ends = (sizes.cumsum(0) - 1)[ended].to(self.device)
        readings = [self._reading(pages, run) for some in alike(pieces) for run in _bounded(some)]
        return read(self.model, torch.tensor(line, device=self.device), readings, ends)

    def _reading(self, pages: Sequence[Sequence[int]], pieces: Sequence[tuple[int, range]]) -> PagedAttentionBatch:
        sizes = torch.tensor([len(span) for _, span in pieces])
        columns = max(span.stop for _, span in pieces)
        seen = [pages[place][: pages_for(columns)] for place, _ in pieces]
        return PagedAttentionBatch(
            rows=len(pieces),
            rows_M=torch.arange(len(pieces)).repeat_interleave(sizes).to(self.device),
            positions_M=torch.tensor([position for _, span in pieces for position in span], device=self.device),
            columns=columns,
            width=int(sizes.max()),
            store=self.store,
            table_RP=page_table(seen, pages_for(columns)).to(self.device),
        )

    # --- rows that write --------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """One token for every row; those that have ended with it."""
        assert self.pool is not None
        tokens_B, logprobs_B = self.sampler.draw(self.logits_BV)
        told = torch.stack([tokens_B.double(), logprobs_B.double()]).tolist()  # one wait for the device a token
        for row, token, logprob in zip(self.alive, *told):
            self.append(row, int(token), logprob)
        ended = [row for row in self.alive if row.finish is not None]
        if ended:
            tokens_B = self._part(self.pool, tokens_B)
        if self.alive:
            positions = [len(row.tokens_in) + len(row.tokens) - 1 for row in self.alive]
            self._extend(self.pool, positions)
            self.logits_BV = self.pool.read(self.model, tokens_B, max(positions))
        else:
            self.idle.append(self.pool)
            self.pool = None
        return ended

    def _extend(self, pool: Pool, positions: Sequence[int]) -> None:
        """More pages for the rows that have filled theirs."""
        short = [place for place, position in enumerate(positions) if position // PAGE_SIZE >= len(self.pages[place])]
        if not short:
            return
        places, columns, taken = list[int](), list[int](), list[int]()
        for place in short:
            row, pages = self.alive[place], self.pages[place]
            most = pages_for(len(row.tokens_in) + row.limit) - len(pages)
            more = self.store.take(max(min(_AHEAD, most), 1))
            places += [place] * len(more)
            columns += range(len(pages), len(pages) + len(more))
            taken += more
            pages += more
        pool.extend(places, columns, taken)

    def _part(self, pool: Pool, tokens_B: torch.Tensor) -> torch.Tensor:
        """Give up the pages of the rows that have ended, and close the gaps; the last tokens of the others."""
        before = len(self.alive)
        staying = [place for place, row in enumerate(self.alive) if row.finish is None]
        count = len(staying)
        ended = [(row, pages) for row, pages in zip(self.alive, self.pages) if row.finish is not None]
        gaps = [place for place in range(count) if self.alive[place].finish is not None]
        movers = staying[count - len(gaps) :]
        pool.move(gaps, movers, count, before)
        order = list(range(count))
        for gap, mover in zip(gaps, movers):
            order[gap] = mover
        self.alive = [self.alive[place] for place in order]
        self.pages[:] = [self.pages[place] for place in order]
        for row, pages in ended:
            if self._forgotten == self.store.forgotten:
                self.store.learn(row.tokens_in + row.tokens[:-1], pages)
            self.store.release(pages)
        if order:
            self.sampler.keep(order)
            tokens_B = tokens_B[torch.tensor(order, device=self.device)]
        return tokens_B


def _wanted(row: Row) -> int:
    """The pages that a row will take, unless it writes very much."""
    return pages_for(len(row.tokens_in) + max(min(row.limit, _EXPECTED), len(row.tokens)))


def _passes(pieces: Sequence[tuple[int, range]], most: int) -> Iterator[list[tuple[int, range]]]:
    """Pieces in passes of bounded size, in order. A longer one takes several.

    >>> list(_passes([(0, range(3)), (1, range(2, 9))], 5))
    [[(0, range(0, 3))], [(1, range(2, 7))], [(1, range(7, 9))]]
    """
    some: list[tuple[int, range]] = []
    size = 0
    for place, span in pieces:
        for start in range(span.start, span.stop, most):
            piece = range(start, min(start + most, span.stop))
            if some and size + len(piece) > most:
                yield some
                some, size = [], 0
            some.append((place, piece))
            size += len(piece)
    yield some


def _bounded(pieces: Sequence[tuple[int, range]]) -> Iterator[Sequence[tuple[int, range]]]:
    """Pieces in runs of bounded columns: what all of a run look at is copied together."""
    columns = max(span.stop for _, span in pieces)
    size = max(_SEEN // columns, 1)
    for start in range(0, len(pieces), size):
        yield pieces[start : start + size]
