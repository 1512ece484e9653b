"""Decoding on a GPU: a pass over the rows that write is recorded once and then replayed.

Writing a token takes hundreds of small kernels, and starting them one by one takes far longer than running them. A
recorded pass (a CUDA graph) starts all of them at once, but does always the same on the same memory. So the rows' keys
and values stay where they are (`pages.py`), what changes from token to token (which rows, at which positions, in which
pages) is written to lists that stay too, and there is one pass for each number of rows, rounded up; and where attention
looks at as many columns of all rows (torch's own does), for each number of columns as well.

`PooledDecoding` does what `decoding.PackedDecoding` does, with the same words. Where a model cannot be recorded, since
it looks at its numbers on the way, its passes are made in the ordinary way.
"""

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from logging import getLogger
from typing import Any
from weakref import finalize

import numpy as np
import torch

from stepladder.engines.base import EngineDown
from stepladder.engines.blocks import read
from stepladder.engines.decoding import PASS_TOKENS, alike
from stepladder.engines.pages import PAGE, WASTE, PagedReading, PageStore, pages_for
from stepladder.engines.prefixes import layout_mark
from stepladder.engines.sampling import Append, Row, Sampler

log = getLogger(__name__)

#: Columns of passes come in multiples of this: fewer to record.
_COLUMNS = 128
#: Pages that a row gets at a time for what it will write.
_AHEAD = 4
#: Tokens that a row is expected to write at most; with more of them, pages may run out.
_EXPECTED = 256
#: How many rows and pages a list has room for at first. With more, all passes are recorded anew.
_ROWS, _PAGES = 64, 512
#: Most columns of all rows that attend together to what they have read: bounds the memory that this takes.
_SEEN = 2**18
#: A recorded pass that leaves other logits than the pass itself, by more than this and this share, is not used.
_OFF = 0.05
#: One recording at a time in a process.
_RECORDING = threading.Lock()


def passed_rows(rows: int) -> int:
    """With how many rows a pass over some is made.

    >>> [passed_rows(rows) for rows in (1, 3, 9, 17, 50, 130)]
    [1, 4, 16, 32, 64, 192]
    """
    if rows <= 16:
        return 1 << (rows - 1).bit_length()
    return _rounded(rows, 16 if rows <= 128 else 64)


class Pool:
    """The rows that write, as the device knows them, and the passes over them that were recorded."""

    def __init__(self, store: PageStore, *, recording: bool = True) -> None:
        """`recording`: whether passes are worth it, since the pool will be kept."""
        self.store, self.device = store, store.device
        self._recording = recording and self.device.type == "cuda"
        #: What the passes are of: the model as it is, and the memory of the pages.
        self._mark: tuple[Any, ...] = ()
        self._empty()

    def _empty(self) -> None:
        #: By row: the token that is read next, its position, and the pages of the row.
        self.tokens_B = torch.zeros(0, dtype=torch.long, device=self.device)
        self.positions_B = self.tokens_B.clone()
        self.table_BP = torch.zeros(0, 0, dtype=torch.long, device=self.device)
        #: Whether attention looks at each row as far as it goes: known when the first pass was made.
        self._by_length = False
        #: Whether passes are recorded: until a model turns out to be none for it.
        self.records = self._recording
        self._logits_BV = torch.zeros(0, 0)
        self._forget_passes()

    def _forget_passes(self) -> None:
        """Give up what was recorded, and where: torch records nothing more in memory whose recordings are all gone."""
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._memory = _Memory(self.device) if self._recording else None

    def fits(self, model: Any) -> bool:
        """Whether all that is kept is of the model as it is: of weights at this place, whatever their values."""
        return self._mark == (*layout_mark(model), self.store.epoch)

    def begin(self, model: Any) -> None:
        """Give up all that is kept, for a model of another layout: other weights, another precision."""
        self._empty()
        self._mark = (*layout_mark(model), self.store.epoch)

    def settle(self, model: Any) -> None:
        """Take note of memory that pages got while contexts were read."""
        mark = (*layout_mark(model), self.store.epoch)
        if mark != self._mark:
            self._forget_passes()
            self._mark = mark

    # --- the rows ---------------------------------------------------------------------------------------------

    def put(self, first: int, pages: Sequence[Sequence[int]], positions: Sequence[int]) -> None:
        """Let rows stand from a place on, with these pages, and at these positions so far."""
        self._make_room(first + len(pages), max(map(len, pages)))
        own = slice(first, first + len(pages))
        table = _padded(pages).to(self.device)
        self.table_BP[own, : table.shape[1]] = table
        self.positions_B[own] = torch.tensor(positions, device=self.device)

    def extend(self, places: Sequence[int], columns: Sequence[int], pages: Sequence[int]) -> None:
        """Give rows more pages, each at its column of the list."""
        self._make_room(0, max(columns) + 1)
        row, column, page = torch.tensor([places, columns, pages], device=self.device)
        self.table_BP[row, column] = page

    def move(self, to: Sequence[int], of: Sequence[int], count: int, before: int) -> None:
        """Rows take the places of others; from `count` on there are none any more."""
        if to:
            into, whence = torch.tensor([to, of], device=self.device)
            self.table_BP[into] = self.table_BP[whence]
            self.positions_B[into] = self.positions_B[whence]
        # Passes are made over more rows than there are. Those that nobody asked for write where nobody reads, all of
        # them the same: which of them is the last to write there is not known.
        self.table_BP[count:before, 0] = WASTE
        self.positions_B[count:before] = 0
        self.tokens_B[count:before] = 0

    def _make_room(self, rows: int, pages: int) -> None:
        size, width = self.table_BP.shape
        if passed_rows(rows) <= size and pages <= width:
            return
        if passed_rows(rows) > size:
            size = passed_rows(max(rows, min(2 * size, size + 256), _ROWS))
        width = _rounded(max(pages, 2 * width, _PAGES), pages_for(_COLUMNS)) if pages > width else width
        before, table = self.table_BP, torch.full((size, width), WASTE, dtype=torch.long, device=self.device)
        table[: before.shape[0], : before.shape[1]] = before
        positions, self.table_BP = self.positions_B, table
        self.positions_B = torch.zeros(size, dtype=torch.long, device=self.device)
        self.positions_B[: len(positions)] = positions
        self.tokens_B = torch.zeros_like(self.positions_B)
        self._forget_passes()

    # --- passes -----------------------------------------------------------------------------------------------

    def read(self, model: Any, tokens_B: torch.Tensor, longest: int) -> torch.Tensor:
        """One pass over the first rows, each a token further; the logits, which the next pass overwrites.

        `longest`: the greatest position.
        """
        if self._mark[-1] != self.store.epoch:
            raise EngineDown("the model's precision was changed while it was writing")
        count = len(tokens_B)
        self.tokens_B[:count] = tokens_B
        self.positions_B[:count] += 1
        rows, columns = passed_rows(count), _rounded(longest + 1, _COLUMNS)
        if self._by_length:
            columns = 0  # however many
        found = self._passes.get((rows, columns))
        if found is not None:
            found.graph.replay()
            return self._logits_BV[:count]
        found = _Pass(self, rows, columns or longest + 1)
        logits_BV = found.run(model)
        self._by_length = found.by_length
        if self.records:
            self._record((rows, 0 if self._by_length else columns), found, model, logits_BV[:count])
        return logits_BV[:count]

    def _record(self, shape: tuple[int, int], found: "_Pass", model: Any, logits_BV: torch.Tensor) -> None:
        try:
            if len(self._logits_BV) < len(self.tokens_B):
                self._forget_passes()
                self._logits_BV = logits_BV.new_zeros(len(self.tokens_B), logits_BV.shape[1])
            with _RECORDING:
                found.record(model, self._logits_BV, self._memory)
            found.graph.replay()
        except torch.OutOfMemoryError:
            # The pass itself went well; there may be room when its shape comes again.
            if not self._passes:
                self._forget_passes()
            return
        except RuntimeError as error:  # whatever its reason
            self._give_up(str(error))
            return
        again_BV = self._logits_BV[: len(logits_BV)]
        if torch.allclose(again_BV, logits_BV, rtol=_OFF, atol=_OFF):
            self._passes[shape] = found
        else:
            self._give_up(f"replayed, its logits differ by {(again_BV - logits_BV).abs().max().item():.3g}")

    def _give_up(self, reason: str) -> None:
        """Every pass is made in the ordinary way from now on."""
        self.records = False
        log.warning("passes over the model cannot be recorded, and writing takes several times as long: %s", reason)


class _Memory:
    """Where the passes of a pool are recorded: they run one after the other, and share what they need in between."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.handle = torch.cuda.graph_pool_handle()


class _Pass:
    """A token for each of the first rows of a pool."""

    def __init__(self, pool: Pool, rows: int, columns: int) -> None:
        self.store, self.rows, self.columns = pool.store, rows, columns
        self.tokens_B, self.positions_B, self.table_BP = (
            each[:rows] for each in (pool.tokens_B, pool.positions_B, pool.table_BP)
        )
        self.graph: Any = None
        self.by_length = False

    def run(self, model: Any) -> torch.Tensor:
        """The pass, made in the ordinary way."""
        reading = PagedReading(
            rows=self.rows,
            rows_M=torch.arange(self.rows, device=self.tokens_B.device),
            positions_M=self.positions_B,
            columns=self.columns,
            width=1,
            store=self.store,
            table_RP=self.table_BP,
        )
        logits_BV = read(model, self.tokens_B, [reading], 0)
        self.by_length = reading.by_length
        return logits_BV

    def record(self, model: Any, logits_BV: torch.Tensor, memory: Any) -> None:
        """Record the pass; replayed, it leaves its logits in the first rows of `logits_BV`."""
        graph = torch.cuda.CUDAGraph()
        kind = self.tokens_B.device.type
        precision = torch.get_autocast_dtype(kind)
        # Weights that autocast has converted and kept would be those of today for ever.
        with (
            torch.autocast(kind, precision, enabled=torch.is_autocast_enabled(kind), cache_enabled=False),
            torch.cuda.device(memory.device),
            torch.cuda.graph(graph, memory.handle, memory.stream, capture_error_mode="thread_local"),
        ):
            logits_BV[: self.rows] = self.run(model)
        self.graph = graph


class PooledDecoding:
    """Rows under way, those that write from the first place of a pool on."""

    #: What the next token of each row is drawn from, and what draws.
    logits_BV: torch.Tensor
    sampler: Sampler

    def __init__(self, model: Any, store: PageStore, append: Append, idle: list[Pool]) -> None:
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
                raise EngineDown("the model was changed while it was writing")
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
            known = len(pages) * PAGE
            pages += self.store.take(pages_for(len(context) + min(row.limit, _AHEAD * PAGE)) - len(pages))
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

    def _reading(self, pages: Sequence[Sequence[int]], pieces: Sequence[tuple[int, range]]) -> PagedReading:
        sizes = torch.tensor([len(span) for _, span in pieces])
        columns = max(span.stop for _, span in pieces)
        seen = [pages[place][: pages_for(columns)] for place, _ in pieces]
        return PagedReading(
            rows=len(pieces),
            rows_M=torch.arange(len(pieces)).repeat_interleave(sizes).to(self.device),
            positions_M=torch.tensor([position for _, span in pieces for position in span], device=self.device),
            columns=columns,
            width=int(sizes.max()),
            store=self.store,
            table_RP=_padded(seen, pages_for(columns)).to(self.device),
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
        short = [place for place, position in enumerate(positions) if position // PAGE >= len(self.pages[place])]
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


def _rounded(number: int, step: int) -> int:
    """The next multiple."""
    return -(-number // step) * step


def _padded(pages: Sequence[Sequence[int]], width: int = 0) -> torch.Tensor:
    """Lists of pages as one table."""
    table = np.full((len(pages), max(width, *map(len, pages))), WASTE)
    for row, own in zip(table, pages):
        row[: len(own)] = own
    return torch.from_numpy(table)
