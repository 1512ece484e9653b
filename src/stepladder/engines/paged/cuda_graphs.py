"""CUDA graphs for decoding: each decode pass is captured once and then replayed.

Generating a token takes hundreds of small kernels, and launching them one by one takes far longer than running them. A
CUDA graph launches all of them at once, but always on the same memory. So the KV cache stays in place (`kv_cache.py`),
the inputs that change (tokens, positions, page tables) are copied to fixed tensors, and there is one graph per padded
batch size; with torch's attention, which does not stop at the length of each row, also one per number of columns.

Models that cannot be captured (they read values back to the host) run eagerly.
"""

import threading
from collections.abc import Sequence
from logging import getLogger
from typing import Any

import torch

from stepladder.core.errors import BackendDown
from stepladder.engines.paged.kv_cache import NULL_PAGE, PagedAttentionBatch, PagedKVCache, page_table, pages_for
from stepladder.engines.transformers.packed_attention import forward_packed
from stepladder.engines.transformers.prefix_cache import layout_fingerprint

log = getLogger(__name__)

#: Columns are rounded up to a multiple of this: fewer graphs.
_COLUMN_MULTIPLE = 128
#: Initial size of the page table. When it grows, all graphs are captured again.
_INITIAL_ROWS, _INITIAL_PAGES = 64, 512
#: Absolute and relative tolerance between the logits of a replayed graph and of the eager pass.
_TOLERANCE = 0.05
#: One capture at a time per process.
_CAPTURE_LOCK = threading.Lock()


def graph_batch_size(rows: int) -> int:
    """The padded batch size for a number of rows.

    >>> [graph_batch_size(rows) for rows in (1, 3, 9, 17, 50, 130)]
    [1, 4, 16, 32, 64, 192]
    """
    if rows <= 16:
        return 1 << (rows - 1).bit_length()
    return _round_up(rows, 16 if rows <= 128 else 64)


class GraphRunner:
    """The device-side state of running rows (tokens, positions, page table), and the CUDA graphs over them."""

    def __init__(self, cache: PagedKVCache, *, capture: bool = True) -> None:
        """`capture`: whether to capture graphs, which pays off if the runner is reused."""
        self.cache, self.device = cache, cache.device
        self._can_capture = capture and self.device.type == "cuda"
        #: The model's layout and the KV cache's epoch for which the graphs are valid.
        self._fingerprint: tuple[Any, ...] = ()
        self._clear()

    def _clear(self) -> None:
        #: By row: the next input token, its position, and the pages of the row.
        self.tokens_B = torch.zeros(0, dtype=torch.long, device=self.device)
        self.positions_B = self.tokens_B.clone()
        self.table_BP = torch.zeros(0, 0, dtype=torch.long, device=self.device)
        #: Whether attention stops at the length of each row: known after the first pass.
        self._length_aware = False
        #: Whether graphs are captured: until a model turns out not to support it.
        self.capture_enabled = self._can_capture
        self._logits_BV = torch.zeros(0, 0)
        self._drop_graphs()

    def _drop_graphs(self) -> None:
        """Drop all graphs and their memory pool: torch captures nothing more in a pool whose graphs are all gone."""
        self._graphs: dict[tuple[int, int], _DecodePass] = {}
        self._graph_memory = _GraphMemory(self.device) if self._can_capture else None

    def matches(self, model: Any) -> bool:
        """Whether the graphs are valid for the model: same weight addresses, whatever their values."""
        return self._fingerprint == (*layout_fingerprint(model), self.cache.epoch)

    def adopt(self, model: Any, *, keep_rows: bool = False) -> None:
        """Drop all graphs that are not valid for the model, and the rows unless they are kept."""
        if not self.matches(model):
            if keep_rows:
                self._drop_graphs()
            else:
                self._clear()
            self._fingerprint = (*layout_fingerprint(model), self.cache.epoch)

    # --- the rows ---------------------------------------------------------------------------------------------

    def set_rows(self, first: int, pages: Sequence[Sequence[int]], positions: Sequence[int]) -> None:
        """Place rows from index `first`, with these pages and current positions."""
        self._grow(first + len(pages), max(map(len, pages)))
        rows = slice(first, first + len(pages))
        table = page_table(pages).to(self.device)
        self.table_BP[rows, : table.shape[1]] = table
        self.positions_B[rows] = torch.tensor(positions, device=self.device)

    def add_pages(self, row_indices: Sequence[int], columns: Sequence[int], pages: Sequence[int]) -> None:
        """Add pages to rows, each at its column of the page table."""
        self._grow(0, max(columns) + 1)
        row, column, page = torch.tensor([row_indices, columns, pages], device=self.device)
        self.table_BP[row, column] = page

    def compact(self, targets: Sequence[int], sources: Sequence[int], count: int, before: int) -> None:
        """Move rows `sources` to `targets`; rows from `count` to `before` become padding."""
        if targets:
            target, source = torch.tensor([targets, sources], device=self.device)
            self.table_BP[target] = self.table_BP[source]
            self.positions_B[target] = self.positions_B[source]
        # Passes run over padded batches. All padding rows write the same values to the null page, so that their order
        # does not matter.
        self.table_BP[count:before, 0] = NULL_PAGE
        self.positions_B[count:before] = 0
        self.tokens_B[count:before] = 0

    def _grow(self, rows: int, pages: int) -> None:
        size, width = self.table_BP.shape
        if graph_batch_size(rows) <= size and pages <= width:
            return
        if graph_batch_size(rows) > size:
            size = graph_batch_size(max(rows, min(2 * size, size + 256), _INITIAL_ROWS))
        if pages > width:
            width = _round_up(max(pages, 2 * width, _INITIAL_PAGES), pages_for(_COLUMN_MULTIPLE))
        before, table = self.table_BP, torch.full((size, width), NULL_PAGE, dtype=torch.long, device=self.device)
        table[: before.shape[0], : before.shape[1]] = before
        positions, self.table_BP = self.positions_B, table
        self.positions_B = torch.zeros(size, dtype=torch.long, device=self.device)
        self.positions_B[: len(positions)] = positions
        self.tokens_B = torch.zeros_like(self.positions_B)
        self._drop_graphs()

    # --- decode passes ----------------------------------------------------------------------------------------

    def decode(self, model: Any, tokens_B: torch.Tensor, max_position: int) -> torch.Tensor:
        """One decode pass over the first rows; returns their logits, which the next pass overwrites.

        `max_position`: the largest position of a row.
        """
        if self._fingerprint[-1] != self.cache.epoch:
            raise BackendDown("the model's precision changed during generation")
        count = len(tokens_B)
        self.tokens_B[:count] = tokens_B
        self.positions_B[:count] += 1
        rows, columns = graph_batch_size(count), _round_up(max_position + 1, _COLUMN_MULTIPLE)
        if self._length_aware:
            columns = 0  # any number
        decode_pass = self._graphs.get((rows, columns))
        if decode_pass is not None:
            decode_pass.graph.replay()
            return self._logits_BV[:count]
        decode_pass = _DecodePass(self, rows, columns or max_position + 1)
        logits_BV = decode_pass.run(model)
        self._length_aware = decode_pass.length_aware
        if self.capture_enabled:
            self._capture((rows, 0 if self._length_aware else columns), decode_pass, model, logits_BV[:count])
        return logits_BV[:count]

    def _capture(self, shape: tuple[int, int], decode_pass: "_DecodePass", model: Any, logits_BV: torch.Tensor) -> None:
        try:
            if len(self._logits_BV) < len(self.tokens_B):
                self._drop_graphs()
                self._logits_BV = logits_BV.new_zeros(len(self.tokens_B), logits_BV.shape[1])
            with _CAPTURE_LOCK:
                decode_pass.capture(model, self._logits_BV, self._graph_memory)
            decode_pass.graph.replay()
        except torch.OutOfMemoryError:
            # The eager pass succeeded; there may be memory when this shape occurs again.
            if not self._graphs:
                self._drop_graphs()
            return
        except RuntimeError as error:  # for any reason
            self._disable_capture(str(error))
            return
        again_BV = self._logits_BV[: len(logits_BV)]
        if torch.allclose(again_BV, logits_BV, rtol=_TOLERANCE, atol=_TOLERANCE):
            self._graphs[shape] = decode_pass
        else:
            self._disable_capture(f"the logits of a replay differ by {(again_BV - logits_BV).abs().max().item():.3g}")

    def _disable_capture(self, reason: str) -> None:
        """Run every pass eagerly from now on."""
        self.capture_enabled = False
        log.warning("CUDA graphs are disabled, generation is several times slower: %s", reason)


class _GraphMemory:
    """The memory pool shared by the graphs of a runner, which run one after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.handle = torch.cuda.graph_pool_handle()


class _DecodePass:
    """One decode step for the first rows of a runner."""

    def __init__(self, runner: GraphRunner, rows: int, columns: int) -> None:
        self.cache, self.rows, self.columns = runner.cache, rows, columns
        self.tokens_B, self.positions_B, self.table_BP = (
            each[:rows] for each in (runner.tokens_B, runner.positions_B, runner.table_BP)
        )
        self.graph: Any = None
        self.length_aware = False

    def run(self, model: Any) -> torch.Tensor:
        """Run the pass eagerly; returns the logits."""
        batch = PagedAttentionBatch(
            rows=self.rows,
            rows_M=torch.arange(self.rows, device=self.tokens_B.device),
            positions_M=self.positions_B,
            columns=self.columns,
            max_query_len=1,
            cache=self.cache,
            table_RP=self.table_BP,
        )
        logits_BV = forward_packed(model, self.tokens_B, [batch], 0)
        self.length_aware = batch.length_aware
        return logits_BV

    def capture(self, model: Any, logits_BV: torch.Tensor, memory: Any) -> None:
        """Capture the pass; a replay writes its logits to the first rows of `logits_BV`."""
        graph = torch.cuda.CUDAGraph()
        kind = self.tokens_B.device.type
        precision = torch.get_autocast_dtype(kind)
        # Without autocast's cache, which would freeze the converted weights in the graph.
        with (
            torch.autocast(kind, precision, enabled=torch.is_autocast_enabled(kind), cache_enabled=False),
            torch.cuda.device(memory.device),
            torch.cuda.graph(graph, memory.handle, memory.stream, capture_error_mode="thread_local"),
        ):
            logits_BV[: self.rows] = self.run(model)
        self.graph = graph


def _round_up(number: int, step: int) -> int:
    """The next multiple of `step`."""
    return -(-number // step) * step
