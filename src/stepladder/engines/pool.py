"""Decoding on a GPU: the rows that write stand in one block, and a pass over them is recorded once and then replayed.

Writing a token takes hundreds of small kernels, and starting them one by one takes far longer than running them. A
recorded pass (a CUDA graph) starts all of them at once, but does always the same on the same memory. So rows join and
leave a block that stays where it is, and there is one pass for each number of rows, rounded up; and where attention
looks at as many columns of all rows (torch's own does), for each number of columns too.

`PooledDecoding` does what `decoding.PackedDecoding` does, with the same words. Contexts, which are of all lengths, are
read there, in blocks of their own. Where a model cannot be recorded, since it looks at its numbers on the way, its
passes are made in the ordinary way.
"""

import threading
from collections.abc import Sequence
from logging import getLogger
from typing import Any

import torch

from stepladder.engines.base import EngineDown
from stepladder.engines.blocks import Block, Reading, read
from stepladder.engines.decoding import BLOCK_ROWS, Group
from stepladder.engines.prefixes import PrefixStore, layout_mark
from stepladder.engines.sampling import Append, Row, Sampler

log = getLogger(__name__)

#: Columns of passes come in multiples of this: fewer to record.
_COLUMNS = 128
#: Rows that have ended are kept in blocks of this many; of fewer, where such a block would be too much of the store.
_KEPT_TOGETHER, _SHARE = 64, 8
#: How much more room than is needed a block may keep from earlier, so that its passes stay.
_SPARE = 2
#: A new block has so many times the columns that are needed, the first where there is memory, the second in any case:
#: transcripts grow, and with every other block all passes are recorded anew. There is memory for this share of what may
#: be kept of transcripts.
_AHEAD, _AHEAD_ANYWAY, _ROOMY = 4, 1.25, 2 / 3
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
    step = 16 if rows <= 128 else 64
    return -(-rows // step) * step


class Pool:
    """A block for the rows that write, and the passes over it that were recorded."""

    def __init__(self, device: torch.device, *, recording: bool = True) -> None:
        """`recording`: whether passes are worth it, since the pool will be kept."""
        self.device = device
        self._recording = recording and device.type == "cuda"
        self._layout: tuple[Any, ...] = ()
        #: How much memory a block may take for columns that are not needed yet.
        self.roomy = 0
        self._empty()

    def _empty(self) -> None:
        self.block = Block(0, 0)
        #: Whether attention looks at each row as far as it goes: known when the first pass was made.
        self._by_length = False
        #: Whether passes are recorded: until a model turns out to be none for it.
        self.records = self._recording
        self._logits_BV = torch.zeros(0, 0)
        self._forget_passes()

    @property
    def bytes(self) -> int:
        """The memory of its block and of its logits."""
        return self.block.bytes + self._logits_BV.nbytes

    def fits(self, model: Any) -> bool:
        """Whether all that is kept is of the model as it is: of weights at this place, whatever their values."""
        return layout_mark(model) == self._layout

    def begin(self, model: Any) -> None:
        """Give up all that is kept, for a model of another layout: other weights, another precision."""
        self._empty()
        self._layout = layout_mark(model)

    def make_room(self, rows: int, columns: int, keep: int, a_column: float = 0.0) -> None:
        """See to it that so many rows and columns fit; the first `keep` rows stay as they are.

        `a_column`: the bytes of one column of a row, where no block tells them yet.
        """
        rows, columns = passed_rows(rows), _round_up(columns)
        before = self.block
        if rows <= before.size and columns <= before.columns:
            return
        larger = max(rows, before.size), max(columns, before.columns)
        if larger[0] * larger[1] <= _SPARE * rows * columns:
            rows, columns = larger
        if before.bytes:
            a_column = before.bytes / (before.size * before.columns)
        affordable = int(self.roomy / (rows * a_column)) if a_column else 0
        made = Block(rows, _round_up(min(max(affordable, int(columns * _AHEAD_ANYWAY)), columns * _AHEAD)))
        if keep:
            made.copy(before, range(keep), range(keep), min(before.columns, made.columns))
        self.block = made
        self._forget_passes()

    def _forget_passes(self) -> None:
        """Give up what was recorded, and where: torch records nothing more in memory whose recordings are all gone."""
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._memory = _Memory(self.device) if self._recording else None

    def read(self, model: Any, tokens_B: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """One pass over the first rows, each at its position; the logits, which the next pass overwrites."""
        rows, columns = passed_rows(len(positions)), _round_up(max(positions) + 1)
        if self._by_length:
            columns = self.block.columns
        found = self._passes.get((rows, columns))
        if found is None:
            found = _Pass(self.block, rows, columns, self.device)
            found.fill(tokens_B, positions)
            logits_BV = found.run(model)
            self._by_length = found.by_length
            if self.records:
                self._record(found, model, logits_BV)
            return logits_BV[: len(positions)]
        found.fill(tokens_B, positions)
        found.graph.replay()
        return self._logits_BV[: len(positions)]

    def _record(self, found: "_Pass", model: Any, logits_BV: torch.Tensor) -> None:
        try:
            if len(self._logits_BV) < self.block.size:
                assert not self._passes  # with more room they were given up
                self._logits_BV = logits_BV.new_zeros(self.block.size, logits_BV.shape[1])
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
        again_BV = self._logits_BV[: found.rows]
        if torch.allclose(again_BV, logits_BV, rtol=_OFF, atol=_OFF):
            self._passes[found.rows, found.columns] = found
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
    """A token for each of some rows, in memory that stays."""

    def __init__(self, block: Block, rows: int, columns: int, device: torch.device) -> None:
        self.block, self.rows, self.columns = block, rows, columns
        self.tokens_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.positions_B = torch.zeros(rows, dtype=torch.long, device=device)
        self.graph: Any = None
        self.by_length = False

    def fill(self, tokens_B: torch.Tensor, positions: Sequence[int]) -> None:
        """What is to be read. Rows that nobody asked for read something at their first place, which is free."""
        self.tokens_B[: len(tokens_B)] = tokens_B
        self.positions_B.copy_(torch.tensor([*positions, *[0] * (self.rows - len(positions))]))

    def run(self, model: Any) -> torch.Tensor:
        """The pass, made in the ordinary way."""
        rows_B = torch.arange(self.rows, device=self.tokens_B.device)
        reading = Reading(self.block, 0, self.rows, rows_B, self.positions_B, self.columns, width=1)
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

    def __init__(self, model: Any, store: PrefixStore, append: Append, idle: list[Pool]) -> None:
        """`idle`: pools that nobody uses; one is taken from there as long as rows are under way."""
        self.model, self.store, self.append, self.idle = model, store, append, idle
        self.device = next(model.parameters()).device
        self.alive: list[Row] = []
        self.pool: Pool | None = None
        #: Where rows that have ended are kept, and how many there are.
        self._kept, self._count = Block(0, 0), 0

    @property
    def rows(self) -> int:
        """How many rows are being written."""
        return len(self.alive)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Let rows join: read what is new in their contexts."""
        pool = self._pool()
        size = BLOCK_ROWS["cuda"]
        rows = sorted(rows, key=lambda row: (len(row.tokens_in), row.tokens_in))
        for start in range(0, len(rows), size):
            group = Group(rows[start : start + size], self.store, self.device)
            group.read_context(self.model)
            self._join(group, pool)

    def _pool(self) -> Pool:
        """The one that rows are in; or else an idle one, or a new one."""
        if self.pool is not None and self.alive:
            if not self.pool.fits(self.model):
                raise EngineDown("the model was changed while it was writing")
            return self.pool
        if self.pool is None:
            of_here = [pool for pool in self.idle if pool.device == self.device]
            self.pool = of_here[-1] if of_here else Pool(self.device, recording=self.store.capacity > 0)
            self.idle[:] = [pool for pool in of_here if pool is not self.pool]
        self.pool.roomy = int(self.store.capacity * _ROOMY)
        if not self.pool.fits(self.model):
            self.pool.begin(self.model)
            self._kept, self._count = Block(0, 0), 0
        return self.pool

    def _join(self, group: Group, pool: Pool) -> None:
        before, count = len(self.alive), len(group.rows)
        written = max((len(row.tokens_in) + len(row.tokens) for row in self.alive), default=0)
        a_column = group.block.bytes / (group.block.size * group.block.columns)
        pool.make_room(before + count, max(group.block.columns, written), before, a_column)
        longest = max(len(row.tokens_in) for row in group.rows)
        pool.block.copy(group.block, range(before, before + count), range(count), longest)
        if before:
            self.logits_BV = torch.cat([self.logits_BV, group.logits_BV])
            self.sampler.join(group.sampler)
        else:
            self.logits_BV, self.sampler = group.logits_BV, group.sampler
        self.alive += group.rows

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
            self.pool.make_room(len(positions), max(positions) + 1, keep=len(positions))
            self.logits_BV = self.pool.read(self.model, tokens_B, positions)
        else:
            if self.pool.bytes + sum(pool.bytes for pool in self.idle) <= self.store.capacity:
                self.idle.append(self.pool)
            self.pool = None
        return ended

    def _part(self, pool: Pool, tokens_B: torch.Tensor) -> torch.Tensor:
        """Keep the rows that have ended elsewhere, and close the gaps; the last tokens of the others."""
        places = [place for place, row in enumerate(self.alive) if row.finish is not None]
        self._keep(pool, places)
        staying = [place for place, row in enumerate(self.alive) if row.finish is None]
        count = len(staying)
        gaps = [place for place in places if place < count]
        movers = staying[count - len(gaps) :]
        if gaps:
            pool.block.copy(pool.block, gaps, movers, pool.block.columns)
        order = list(range(count))
        for gap, mover in zip(gaps, movers):
            order[gap] = mover
        self.alive = [self.alive[place] for place in order]
        if order:
            self.sampler.keep(order)
            tokens_B = tokens_B[torch.tensor(order, device=self.device)]
        return tokens_B

    def _keep(self, pool: Pool, places: Sequence[int]) -> None:
        if not self.store.capacity:
            return
        rows = [self.alive[place] for place in places]
        held = [row.tokens_in + row.tokens[:-1] for row in rows]
        longest = max(map(len, held))
        if self._count + len(rows) > self._kept.size:
            a_row = pool.bytes // pool.block.size * longest // pool.block.columns
            together = min(_KEPT_TOGETHER, self.store.capacity // (_SHARE * a_row))
            self._kept, self._count = Block(max(together, len(rows)), longest), 0
        self._kept.reserve(longest)
        own = range(self._count, self._count + len(rows))
        self._kept.copy(pool.block, own, places, longest)
        self._count += len(rows)
        self.store.add(self._kept, dict(zip(own, held)))


def _round_up(columns: int) -> int:
    return -(-columns // _COLUMNS) * _COLUMNS
