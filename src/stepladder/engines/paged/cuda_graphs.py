"""Passes over the rows that write on a GPU, each recorded once and then replayed.

Writing a token takes hundreds of small kernels, and starting them one by one takes far longer than running them. A
recorded pass (a CUDA graph) starts all of them at once, but does always the same on the same memory. So the rows' keys
and values stay where they are (`pages.py`), what changes from token to token (which rows, at which positions, in which
pages) is written to lists that stay too, and there is one pass for each number of rows, rounded up; and where attention
looks at as many columns of all rows (torch's own does), for each number of columns as well.

What is recorded is the model's pass with fewer kernels (`lean.py`), where there is one that leaves the same logits, and
else the model's own. Where a model cannot be recorded, since it looks at its numbers on the way, its passes are made in
the ordinary way.
"""

import threading
from collections.abc import Sequence
from logging import getLogger
from typing import Any

import torch

from stepladder.core.errors import BackendDown
from stepladder.engines.paged.fused_decode import LeanPass
from stepladder.engines.paged.kv_cache import NULL_PAGE, PagedAttentionBatch, PagedKVCache, page_table, pages_for
from stepladder.engines.transformers.packed_attention import read
from stepladder.engines.transformers.prefix_cache import layout_mark

log = getLogger(__name__)

#: Columns of passes come in multiples of this: fewer to record.
_COLUMNS = 128
#: How many rows and pages a list has room for at first. With more, all passes are recorded anew.
_ROWS, _PAGES = 64, 512
#: A recorded pass that leaves other logits than the pass itself, by more than this and this share, is not used.
_OFF = 0.05
#: Nor is a lean pass from which other words would be drawn than from the model's own: by more nats (KL) than this in
#: any row, or with a logit off by more than this share of the greatest. Rounding to bf16 makes 0.01 nats, and 0.03.
_DIVERGENCE_LEAN, _OFF_LEAN = 0.1, 0.1
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

    def __init__(self, store: PagedKVCache, *, recording: bool = True) -> None:
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
        #: The model's pass with fewer kernels, as long as it has left the same logits.
        self._lean: LeanPass | None = None
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
        self._lean = LeanPass.of(model) if self.records else None

    def settle(self, model: Any) -> None:
        """Take note of memory that pages got while contexts were read."""
        mark = (*layout_mark(model), self.store.epoch)
        if mark != self._mark:
            self._forget_passes()
            self._mark = mark
            self._lean = LeanPass.of(model) if self.records else None

    # --- the rows ---------------------------------------------------------------------------------------------

    def put(self, first: int, pages: Sequence[Sequence[int]], positions: Sequence[int]) -> None:
        """Let rows stand from a place on, with these pages, and at these positions so far."""
        self._make_room(first + len(pages), max(map(len, pages)))
        own = slice(first, first + len(pages))
        table = page_table(pages).to(self.device)
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
        self.table_BP[count:before, 0] = NULL_PAGE
        self.positions_B[count:before] = 0
        self.tokens_B[count:before] = 0

    def _make_room(self, rows: int, pages: int) -> None:
        size, width = self.table_BP.shape
        if passed_rows(rows) <= size and pages <= width:
            return
        if passed_rows(rows) > size:
            size = passed_rows(max(rows, min(2 * size, size + 256), _ROWS))
        width = _rounded(max(pages, 2 * width, _PAGES), pages_for(_COLUMNS)) if pages > width else width
        before, table = self.table_BP, torch.full((size, width), NULL_PAGE, dtype=torch.long, device=self.device)
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
            raise BackendDown("the model's precision was changed while it was writing")
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
            if self._lean is not None:
                logits_BV = self._leaner(found, self._lean, model, logits_BV)
            self._record((rows, 0 if self._by_length else columns), found, model, logits_BV[:count])
        return logits_BV[:count]

    def _leaner(self, found: "_Pass", lean: LeanPass, model: Any, logits_BV: torch.Tensor) -> torch.Tensor:
        """Make the pass with fewer kernels, and from now on if that leaves the same logits; those that it leaves."""
        try:
            again_BV = found.run_lean(lean)
            if told := _unlike(logits_BV, again_BV):
                raise ArithmeticError(told)
        except torch.OutOfMemoryError:
            return found.run(model)  # writes its keys and values anew, where the other has not come to its end
        except Exception as error:  # noqa: BLE001 - Triton fails in many ways, and the model's own pass went well
            self._not_lean(str(error))
            return found.run(model)
        found.lean = lean
        return again_BV

    def _not_lean(self, reason: str) -> None:
        """Passes are recorded as the model makes them from now on."""
        self._lean = None
        log.warning("passes are recorded as the model makes them, with more kernels than they need: %s", reason)

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
            if found.lean is not None:
                self._not_lean(str(error))
                if not self._passes:
                    self._forget_passes()
                found.lean = None
                self._record(shape, found, model, found.run(model)[: len(logits_BV)])
            else:
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
        #: By which it is recorded, if not by the model itself.
        self.lean: LeanPass | None = None

    def _reading(self) -> PagedAttentionBatch:
        return PagedAttentionBatch(
            rows=self.rows,
            rows_M=torch.arange(self.rows, device=self.tokens_B.device),
            positions_M=self.positions_B,
            columns=self.columns,
            width=1,
            store=self.store,
            table_RP=self.table_BP,
        )

    def run(self, model: Any) -> torch.Tensor:
        """The pass, made in the ordinary way."""
        reading = self._reading()
        logits_BV = read(model, self.tokens_B, [reading], 0)
        self.by_length = reading.by_length
        return logits_BV

    def run_lean(self, lean: LeanPass) -> torch.Tensor:
        """The pass, made with fewer kernels."""
        return lean.run(self.tokens_B, self._reading())

    def again(self, model: Any) -> torch.Tensor:
        """The pass, made as it is to be recorded."""
        return self.run(model) if self.lean is None else self.run_lean(self.lean)

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
            logits_BV[: self.rows] = self.again(model)
        self.graph = graph


def _rounded(number: int, step: int) -> int:
    """The next multiple."""
    return -(-number // step) * step


def _unlike(logits_BV: torch.Tensor, again_BV: torch.Tensor) -> str | None:
    """How logits differ from others by more than rounding, in the row where they do so most; None if they do not."""
    off, most = (again_BV - logits_BV).abs().max().item(), logits_BV.abs().max().item()
    log_p_BV, log_q_BV = (torch.log_softmax(each.float(), dim=-1) for each in (logits_BV, again_BV))
    diverges = (log_p_BV.exp() * (log_p_BV - log_q_BV)).sum(-1).max().item()
    if off <= _OFF_LEAN * most and diverges <= _DIVERGENCE_LEAN:
        return None
    return f"its logits differ by {off:.3g}, of {most:.3g}, and what is drawn by {diverges:.3g} nats"
