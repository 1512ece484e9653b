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
from stepladder.engines.paged.fused_decode import FusedDecoder
from stepladder.engines.paged.kv_cache import NULL_PAGE, PagedAttentionBatch, PagedKVCache, page_table, pages_for
from stepladder.engines.transformers.packed_attention import forward_packed
from stepladder.engines.transformers.prefix_cache import layout_fingerprint

log = getLogger(__name__)

#: Columns of passes come in multiples of this: fewer to record.
_COLUMN_MULTIPLE = 128
#: How many rows and pages a list has room for at first. With more, all passes are recorded anew.
_INITIAL_ROWS, _INITIAL_PAGES = 64, 512
#: A recorded pass that leaves other logits than the pass itself, by more than this and this share, is not used.
_TOLERANCE = 0.05
#: Nor is a lean pass from which other words would be drawn than from the model's own: by more nats (KL) than this in
#: any row, or with a logit off by more than this share of the greatest. Rounding to bf16 makes 0.01 nats, and 0.03.
_FUSED_MAX_KL, _FUSED_TOLERANCE = 0.1, 0.1
#: One recording at a time in a process.
_CAPTURE_LOCK = threading.Lock()


def graph_batch_size(rows: int) -> int:
    """With how many rows a pass over some is made.

    >>> [graph_batch_size(rows) for rows in (1, 3, 9, 17, 50, 130)]
    [1, 4, 16, 32, 64, 192]
    """
    if rows <= 16:
        return 1 << (rows - 1).bit_length()
    return _round_up(rows, 16 if rows <= 128 else 64)


class GraphRunner:
    """The rows that write, as the device knows them, and the passes over them that were recorded."""

    def __init__(self, cache: PagedKVCache, *, capture: bool = True) -> None:
        """`recording`: whether passes are worth it, since the pool will be kept."""
        self.cache, self.device = cache, cache.device
        self._can_capture = capture and self.device.type == "cuda"
        #: What the passes are of: the model as it is, and the memory of the pages.
        self._fingerprint: tuple[Any, ...] = ()
        self._clear()

    def _clear(self) -> None:
        #: By row: the token that is read next, its position, and the pages of the row.
        self.tokens_B = torch.zeros(0, dtype=torch.long, device=self.device)
        self.positions_B = self.tokens_B.clone()
        self.table_BP = torch.zeros(0, 0, dtype=torch.long, device=self.device)
        #: Whether attention looks at each row as far as it goes: known when the first pass was made.
        self._length_aware = False
        #: Whether passes are recorded: until a model turns out to be none for it.
        self.capture_enabled = self._can_capture
        self._logits_BV = torch.zeros(0, 0)
        #: The model's pass with fewer kernels, as long as it has left the same logits.
        self._fused: FusedDecoder | None = None
        self._drop_graphs()

    def _drop_graphs(self) -> None:
        """Give up what was recorded, and where: torch records nothing more in memory whose recordings are all gone."""
        self._graphs: dict[tuple[int, int], _DecodePass] = {}
        self._graph_memory = _GraphMemory(self.device) if self._can_capture else None

    def matches(self, model: Any) -> bool:
        """Whether all that is kept is of the model as it is: of weights at this place, whatever their values."""
        return self._fingerprint == (*layout_fingerprint(model), self.cache.epoch)

    def reset(self, model: Any) -> None:
        """Give up all that is kept, for a model of another layout: other weights, another precision."""
        self._clear()
        self._fingerprint = (*layout_fingerprint(model), self.cache.epoch)
        self._fused = FusedDecoder.for_model(model) if self.capture_enabled else None

    def refresh(self, model: Any) -> None:
        """Take note of memory that pages got while contexts were read."""
        fingerprint = (*layout_fingerprint(model), self.cache.epoch)
        if fingerprint != self._fingerprint:
            self._drop_graphs()
            self._fingerprint = fingerprint
            self._fused = FusedDecoder.for_model(model) if self.capture_enabled else None

    # --- the rows ---------------------------------------------------------------------------------------------

    def set_rows(self, first: int, pages: Sequence[Sequence[int]], positions: Sequence[int]) -> None:
        """Let rows stand from a place on, with these pages, and at these positions so far."""
        self._grow(first + len(pages), max(map(len, pages)))
        rows = slice(first, first + len(pages))
        table = page_table(pages).to(self.device)
        self.table_BP[rows, : table.shape[1]] = table
        self.positions_B[rows] = torch.tensor(positions, device=self.device)

    def add_pages(self, row_indices: Sequence[int], columns: Sequence[int], pages: Sequence[int]) -> None:
        """Give rows more pages, each at its column of the list."""
        self._grow(0, max(columns) + 1)
        row, column, page = torch.tensor([row_indices, columns, pages], device=self.device)
        self.table_BP[row, column] = page

    def compact(self, targets: Sequence[int], sources: Sequence[int], count: int, before: int) -> None:
        """Rows take the places of others; from `count` on there are none any more."""
        if targets:
            target, source = torch.tensor([targets, sources], device=self.device)
            self.table_BP[target] = self.table_BP[source]
            self.positions_B[target] = self.positions_B[source]
        # Passes are made over more rows than there are. Those that nobody asked for write where nobody reads, all of
        # them the same: which of them is the last to write there is not known.
        self.table_BP[count:before, 0] = NULL_PAGE
        self.positions_B[count:before] = 0
        self.tokens_B[count:before] = 0

    def _grow(self, rows: int, pages: int) -> None:
        size, width = self.table_BP.shape
        if graph_batch_size(rows) <= size and pages <= width:
            return
        if graph_batch_size(rows) > size:
            size = graph_batch_size(max(rows, min(2 * size, size + 256), _INITIAL_ROWS))
        width = (
            _round_up(max(pages, 2 * width, _INITIAL_PAGES), pages_for(_COLUMN_MULTIPLE)) if pages > width else width
        )
        before, table = self.table_BP, torch.full((size, width), NULL_PAGE, dtype=torch.long, device=self.device)
        table[: before.shape[0], : before.shape[1]] = before
        positions, self.table_BP = self.positions_B, table
        self.positions_B = torch.zeros(size, dtype=torch.long, device=self.device)
        self.positions_B[: len(positions)] = positions
        self.tokens_B = torch.zeros_like(self.positions_B)
        self._drop_graphs()

    # --- passes -----------------------------------------------------------------------------------------------

    def decode(self, model: Any, tokens_B: torch.Tensor, max_position: int) -> torch.Tensor:
        """One pass over the first rows, each a token further; the logits, which the next pass overwrites.

        `longest`: the greatest position.
        """
        if self._fingerprint[-1] != self.cache.epoch:
            raise BackendDown("the model's precision was changed while it was writing")
        count = len(tokens_B)
        self.tokens_B[:count] = tokens_B
        self.positions_B[:count] += 1
        rows, columns = graph_batch_size(count), _round_up(max_position + 1, _COLUMN_MULTIPLE)
        if self._length_aware:
            columns = 0  # however many
        decode_pass = self._graphs.get((rows, columns))
        if decode_pass is not None:
            decode_pass.graph.replay()
            return self._logits_BV[:count]
        decode_pass = _DecodePass(self, rows, columns or max_position + 1)
        logits_BV = decode_pass.run(model)
        self._length_aware = decode_pass.length_aware
        if self.capture_enabled:
            if self._fused is not None:
                logits_BV = self._try_fused(decode_pass, self._fused, model, logits_BV)
            self._capture((rows, 0 if self._length_aware else columns), decode_pass, model, logits_BV[:count])
        return logits_BV[:count]

    def _try_fused(
        self, decode_pass: "_DecodePass", fused: FusedDecoder, model: Any, logits_BV: torch.Tensor
    ) -> torch.Tensor:
        """Make the pass with fewer kernels, and from now on if that leaves the same logits; those that it leaves."""
        try:
            again_BV = decode_pass.run_fused(fused)
            if mismatch := _mismatch(logits_BV, again_BV):
                raise ArithmeticError(mismatch)
        except torch.OutOfMemoryError:
            return decode_pass.run(model)  # writes its keys and values anew, where the other has not come to its end
        except Exception as error:  # noqa: BLE001 - Triton fails in many ways, and the model's own pass went well
            self._disable_fused(str(error))
            return decode_pass.run(model)
        decode_pass.fused = fused
        return again_BV

    def _disable_fused(self, reason: str) -> None:
        """Passes are recorded as the model makes them from now on."""
        self._fused = None
        log.warning("passes are recorded as the model makes them, with more kernels than they need: %s", reason)

    def _capture(self, shape: tuple[int, int], decode_pass: "_DecodePass", model: Any, logits_BV: torch.Tensor) -> None:
        try:
            if len(self._logits_BV) < len(self.tokens_B):
                self._drop_graphs()
                self._logits_BV = logits_BV.new_zeros(len(self.tokens_B), logits_BV.shape[1])
            with _CAPTURE_LOCK:
                decode_pass.capture(model, self._logits_BV, self._graph_memory)
            decode_pass.graph.replay()
        except torch.OutOfMemoryError:
            # The pass itself went well; there may be room when its shape comes again.
            if not self._graphs:
                self._drop_graphs()
            return
        except RuntimeError as error:  # whatever its reason
            if decode_pass.fused is not None:
                self._disable_fused(str(error))
                if not self._graphs:
                    self._drop_graphs()
                decode_pass.fused = None
                self._capture(shape, decode_pass, model, decode_pass.run(model)[: len(logits_BV)])
            else:
                self._disable_capture(str(error))
            return
        again_BV = self._logits_BV[: len(logits_BV)]
        if torch.allclose(again_BV, logits_BV, rtol=_TOLERANCE, atol=_TOLERANCE):
            self._graphs[shape] = decode_pass
        else:
            self._disable_capture(f"replayed, its logits differ by {(again_BV - logits_BV).abs().max().item():.3g}")

    def _disable_capture(self, reason: str) -> None:
        """Every pass is made in the ordinary way from now on."""
        self.capture_enabled = False
        log.warning("passes over the model cannot be recorded, and writing takes several times as long: %s", reason)


class _GraphMemory:
    """Where the passes of a pool are recorded: they run one after the other, and share what they need in between."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.handle = torch.cuda.graph_pool_handle()


class _DecodePass:
    """A token for each of the first rows of a pool."""

    def __init__(self, runner: GraphRunner, rows: int, columns: int) -> None:
        self.cache, self.rows, self.columns = runner.cache, rows, columns
        self.tokens_B, self.positions_B, self.table_BP = (
            each[:rows] for each in (runner.tokens_B, runner.positions_B, runner.table_BP)
        )
        self.graph: Any = None
        self.length_aware = False
        #: By which it is recorded, if not by the model itself.
        self.fused: FusedDecoder | None = None

    def _attention_batch(self) -> PagedAttentionBatch:
        return PagedAttentionBatch(
            rows=self.rows,
            rows_M=torch.arange(self.rows, device=self.tokens_B.device),
            positions_M=self.positions_B,
            columns=self.columns,
            max_query_len=1,
            cache=self.cache,
            table_RP=self.table_BP,
        )

    def run(self, model: Any) -> torch.Tensor:
        """The pass, made in the ordinary way."""
        batch = self._attention_batch()
        logits_BV = forward_packed(model, self.tokens_B, [batch], 0)
        self.length_aware = batch.length_aware
        return logits_BV

    def run_fused(self, fused: FusedDecoder) -> torch.Tensor:
        """The pass, made with fewer kernels."""
        return fused.run(self.tokens_B, self._attention_batch())

    def run_selected(self, model: Any) -> torch.Tensor:
        """The pass, made as it is to be recorded."""
        return self.run(model) if self.fused is None else self.run_fused(self.fused)

    def capture(self, model: Any, logits_BV: torch.Tensor, memory: Any) -> None:
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
            logits_BV[: self.rows] = self.run_selected(model)
        self.graph = graph


def _round_up(number: int, step: int) -> int:
    """The next multiple."""
    return -(-number // step) * step


def _mismatch(logits_BV: torch.Tensor, again_BV: torch.Tensor) -> str | None:
    """How logits differ from others by more than rounding, in the row where they do so most; None if they do not."""
    difference, most = (again_BV - logits_BV).abs().max().item(), logits_BV.abs().max().item()
    log_p_BV, log_q_BV = (torch.log_softmax(each.float(), dim=-1) for each in (logits_BV, again_BV))
    divergence = (log_p_BV.exp() * (log_p_BV - log_q_BV)).sum(-1).max().item()
    if difference <= _FUSED_TOLERANCE * most and divergence <= _FUSED_MAX_KL:
        return None
    return f"its logits differ by {difference:.3g}, of {most:.3g}, and what is drawn by {divergence:.3g} nats"
