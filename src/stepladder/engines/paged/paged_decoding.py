"""Decoding on a GPU with a paged KV cache (`kv_cache.py`) and CUDA graphs (`cuda_graphs.py`).

`PagedDecoding` has the interface of `decoding.PackedDecoding`. Rows that join share the pages of common prefixes and
prefill the rest; the pages of finished rows stay cached. A row waits until there are pages for its prompt and the
tokens it may generate.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from typing import Any
from weakref import finalize

import torch

from stepladder.core.errors import BackendDown
from stepladder.engines.paged.cuda_graphs import GraphRunner
from stepladder.engines.paged.kv_cache import PAGE_SIZE, PagedAttentionBatch, PagedKVCache, page_table, pages_for
from stepladder.engines.transformers.decoding import (
    PREFILL_TOKENS,
    Piece,
    compaction,
    layout_of,
    packed_inputs,
    prefill_chunks,
    similar_lengths,
)
from stepladder.engines.transformers.packed_attention import forward_packed
from stepladder.engines.transformers.token_sampler import Append, Row, Sampler

#: Pages allocated at a time for generated tokens.
_PAGES_AHEAD = 4
#: Expected maximum number of generated tokens per row; rows that generate more may run out of pages.
_EXPECTED_TOKENS = 256
#: Maximum number of columns of all rows in one prefill attention: limits memory.
_MAX_COLUMNS = 2**18


class PagedDecoding:
    """Rows being generated, in the first rows of a graph runner."""

    #: The logits of the next token of each row, and the sampler.
    logits_BV: torch.Tensor
    sampler: Sampler

    def __init__(self, model: Any, cache: PagedKVCache, append: Append, idle_runners: list[GraphRunner]) -> None:
        """`idle_runners`: runners that are not in use; one is borrowed while rows are running."""
        self.model, self.cache, self.append, self.idle_runners = model, cache, append, idle_runners
        self.device = cache.device
        self.active: list[Row] = []
        #: The pages of each row.
        self.pages: list[list[int]] = []
        self.runner: GraphRunner | None = None
        #: The cache's `clear_count` when rows started: after another clear, their pages are not added to the cache.
        self._clear_count = 0
        finalize(self, cache.discard, self.pages)  # also when the session is abandoned

    @property
    def rows(self) -> int:
        """Number of running rows."""
        return len(self.active)

    def close(self) -> None:
        """Drop the running rows after a failure."""
        if self.pages:
            self.cache.discard(self.pages)
            self.active, self.runner = [], None

    # --- prefill ----------------------------------------------------------------------------------------------

    def num_admissible(self, rows: Sequence[Row]) -> int:
        """How many of these rows, from the first, fit beside the running ones with the tokens they may generate."""
        reserved = sum(max(_pages_needed(row) - len(pages), 0) for row, pages in zip(self.active, self.pages))
        room = self.cache.available - reserved
        needed = accumulate(map(_pages_needed, rows))  # an upper bound: rows may share pages
        return sum(1 for _ in takewhile(lambda pages: pages <= room, needed))

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Add rows: prefill the new part of their prompts."""
        runner = self._acquire_runner()
        rows = sorted(rows, key=lambda row: (len(row.prompt_tokens), row.prompt_tokens))
        before = len(self.active)
        try:
            logits_BV = self._prefill(rows)
            runner.adopt(self.model, keep_rows=True)  # the prefill may have allocated buffers
            runner.set_rows(before, self.pages[before:], [len(row.prompt_tokens) - 1 for row in rows])
        except BaseException:
            new = self.pages[before:]
            del self.pages[before:]
            self.cache.discard(new)  # their pages may not be filled
            raise
        sampler = Sampler(rows, self.device)
        if before:
            self.logits_BV = torch.cat([self.logits_BV, logits_BV])
            self.sampler.extend(sampler)
        else:
            self.logits_BV, self.sampler = logits_BV, sampler
        self.active += rows

    def _acquire_runner(self) -> GraphRunner:
        """The runner in use; otherwise an idle one or a new one."""
        if self.runner is not None and self.active:
            if not self.runner.matches(self.model):
                raise BackendDown("the model changed during generation")
            return self.runner
        if self.runner is None:
            idle, can_capture = self.idle_runners, self.cache.capacity > 0
            self.runner = idle.pop() if idle else GraphRunner(self.cache, capture=can_capture)
        self._clear_count = self.cache.clear_count
        self.runner.adopt(self.model)
        return self.runner

    def _prefill(self, rows: Sequence[Row]) -> torch.Tensor:
        """Prefill the new tokens of all prompts; the logits after each prompt."""
        pieces: list[Piece] = []
        prompts = [row.prompt_tokens for row in rows]
        for index, (row, prompt) in enumerate(zip(rows, prompts)):
            # The last token of a prompt is always prefilled: its logits are needed.
            pages = self.cache.find(prompt[:-1])
            self.pages.append(pages)
            cached = len(pages) * PAGE_SIZE
            ahead = min(row.max_new_tokens, _PAGES_AHEAD * PAGE_SIZE)
            pages += self.cache.allocate(pages_for(len(prompt) + ahead) - len(pages))
            # The rows after this one may share these pages: they are filled before those are.
            self.cache.insert(prompt, pages)
            pieces.append((index, range(cached, len(prompt))))
        page_lists = self.pages[-len(rows) :]
        parts, order = [], list[int]()
        for chunk in prefill_chunks(pieces, PREFILL_TOKENS.get(self.device.type, PREFILL_TOKENS["cuda"])):
            chunk.sort(key=lambda piece: len(piece[1]))
            ids_M, ends = packed_inputs(prompts, chunk, self.device)
            # torch's attention pads rows to the longest.
            padded = (run for some in similar_lengths(chunk) for run in _bounded(some))
            runs = [chunk] if self.cache.has_kernels else padded
            batches = [self._attention_batch(page_lists, run) for run in runs]
            parts.append(forward_packed(self.model, ids_M, batches, ends))
            order += [index for index, span in chunk if span.stop == len(prompts[index])]
        logits_BV = torch.cat(parts)
        inverse = torch.empty(len(order), dtype=torch.long)
        inverse[torch.tensor(order)] = torch.arange(len(order))
        return logits_BV[inverse.to(self.device)]

    def _attention_batch(self, pages: Sequence[Sequence[int]], pieces: Sequence[Piece]) -> PagedAttentionBatch:
        layout = layout_of(pieces, self.device)
        width = pages_for(layout["columns"])
        table = page_table([pages[index][:width] for index, _ in pieces], width)
        sizes = [len(span) for _, span in pieces]
        return PagedAttentionBatch(**layout, cache=self.cache, table_RP=table.to(self.device), sizes=sizes)

    # --- decoding ---------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Generate one token for every row; returns the rows that finished."""
        assert self.runner is not None
        drawn_2B = self.sampler.draw(self.logits_BV, self.active)
        tokens_B = drawn_2B[0].long()
        for row, token, logprob in zip(self.active, *drawn_2B.tolist()):  # one device synchronization per token
            self.append(row, int(token), logprob)
        finished = [row for row in self.active if row.finish is not None]
        if finished:
            tokens_B = self._remove_finished(self.runner, tokens_B)
        if self.active:
            positions = [len(row.prompt_tokens) + len(row.tokens) - 1 for row in self.active]
            self._extend(self.runner, positions)
            self.logits_BV = self.runner.decode(self.model, tokens_B, max(positions))
        else:
            self.idle_runners.append(self.runner)
            self.runner = None
        return finished

    def _extend(self, runner: GraphRunner, positions: Sequence[int]) -> None:
        """Allocate pages for the rows whose pages are full."""
        short = [index for index, position in enumerate(positions) if position // PAGE_SIZE >= len(self.pages[index])]
        if not short:
            return
        indices, columns, taken = list[int](), list[int](), list[int]()
        for index in short:
            row, pages = self.active[index], self.pages[index]
            most = pages_for(len(row.prompt_tokens) + row.max_new_tokens) - len(pages)
            more = self.cache.allocate(max(min(_PAGES_AHEAD, most), 1))
            indices += [index] * len(more)
            columns += range(len(pages), len(pages) + len(more))
            taken += more
            pages += more
        runner.add_pages(indices, columns, taken)

    def _remove_finished(self, runner: GraphRunner, tokens_B: torch.Tensor) -> torch.Tensor:
        """Release the pages of finished rows and close the gaps; returns the last tokens of the running rows."""
        finished = [(row, pages) for row, pages in zip(self.active, self.pages) if row.finish is not None]
        gaps, movers, order = compaction(self.active)
        runner.compact(gaps, movers, len(order), len(self.active))
        self.active = [self.active[index] for index in order]
        self.pages[:] = [self.pages[index] for index in order]
        for row, pages in finished:
            if self._clear_count == self.cache.clear_count:
                self.cache.insert(row.prompt_tokens + row.tokens[:-1], pages)
            self.cache.release(pages)
        if order:
            self.sampler.select(order)
            tokens_B = tokens_B[torch.tensor(order, device=self.device)]
        return tokens_B


def _pages_needed(row: Row) -> int:
    """The pages a row will need, unless it generates more than expected."""
    return pages_for(len(row.prompt_tokens) + max(min(row.max_new_tokens, _EXPECTED_TOKENS), len(row.tokens)))


def _bounded(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """Pieces in runs of a limited number of columns: the keys and values of a run are gathered in one tensor."""
    columns = max(span.stop for _, span in pieces)
    size = max(_MAX_COLUMNS // columns, 1)
    for start in range(0, len(pieces), size):
        yield pieces[start : start + size]
