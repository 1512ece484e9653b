"""The decoding loops. In: rows. Out: rows with their generated tokens.

`PackedDecoding` is for models with plain causal attention (most models): no padding, a KV cache written in place, a
prefix cache, prompts that occur several times prefilled once, and continuous batching: rows may join at any time.
`decode_padded` is for all others (recurrent, sliding window ...): left-padded batches with transformers' own cache.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from stepladder.core.errors import BackendError
from stepladder.engines.transformers.packed_attention import DenseAttentionBatch, DenseKVCache, forward_packed
from stepladder.engines.transformers.prefix_cache import PrefixCache, PrefixMatch
from stepladder.engines.transformers.token_sampler import Append, Row, Sampler

#: Rows per group. A CPU gains from attending to few columns, a GPU from launching few kernels.
GROUP_ROWS = {"cpu": 32, "cuda": 512}
#: Columns reserved for generated tokens; more are added when needed.
RESERVED_COLUMNS = 64
#: Pieces have similar lengths if one is at most this many times as long as another, or short.
_LENGTH_RATIO, _SHORT = 2, 64
#: Maximum number of prompt tokens per prefill pass: limits memory.
PREFILL_TOKENS = {"cpu": 8192, "cuda": 32768}


#: The index of a prompt and the positions of some of its tokens.
Piece = tuple[int, range]


class PackedDecoding:
    """Rows being generated, in groups that started together."""

    def __init__(self, model: Any, cache: PrefixCache, append: Append) -> None:
        self.model = model
        self.cache = cache
        self.append = append
        self.device = next(model.parameters()).device
        self.groups: list[RowGroup] = []

    @property
    def rows(self) -> int:
        """Number of running rows."""
        return sum(len(group.active) for group in self.groups)

    def close(self) -> None:
        """Drop the running rows."""
        self.groups = []

    def num_admissible(self, rows: Sequence[Row]) -> int:
        """How many of these rows fit in memory: all of them, in main memory."""
        return len(rows)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Add rows: prefill the new part of their prompts."""
        size = GROUP_ROWS.get(self.device.type, GROUP_ROWS["cuda"])
        # Similar lengths together, equal prompts too.
        rows = sorted(rows, key=lambda row: (len(row.prompt_tokens), row.prompt_tokens))
        groups = [RowGroup(rows[start : start + size], self.cache, self.device) for start in range(0, len(rows), size)]
        for group in groups:
            group.prefill(self.model)
        self.groups += groups

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """Generate one token for every row; returns the rows that finished."""
        drawn = [group.sampler.draw(group.logits_BV, group.active) for group in self.groups]
        values = torch.cat(drawn, dim=1).tolist()  # one device synchronization per token
        for row, token, logprob in zip((row for group in self.groups for row in group.active), *values):
            self.append(row, int(token), logprob)
        finished = [row for group in self.groups for row in group.active if row.finish is not None]
        for group, drawn_2G in zip(self.groups, drawn):
            self.cache.add(group.kv_cache, group.move_finished(drawn_2G[0].long()))
        self.groups = [group for group in self.groups if group.active]
        if self.groups:
            batches = [group.decode_batch() for group in self.groups]
            logits_BV = forward_packed(self.model, torch.cat([group.tokens_B for group in self.groups]), batches, 0)
            parts = torch.split(logits_BV, [len(group.active) for group in self.groups])
            for group, logits_GV in zip(self.groups, parts):
                group.logits_BV = logits_GV
        return finished


class RowGroup:
    """Rows that started together and share a KV cache. Running rows come first."""

    #: Of the running rows: the logits of the next token, and the last token.
    logits_BV: torch.Tensor
    tokens_B: torch.Tensor

    def __init__(self, rows: list[Row], cache: PrefixCache, device: torch.device) -> None:
        self.device = device
        rows_by_prompt: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            rows_by_prompt.setdefault(tuple(row.prompt_tokens), []).append(row)
        # The last token of a prompt is always prefilled: its logits are needed.
        found = {prompt: cache.find(prompt[:-1]) for prompt in rows_by_prompt}
        cached = {prompt: prefix.length if prefix else 0 for prompt, prefix in found.items()}
        # Prompts with similar numbers of new tokens come together.
        prompts = sorted(rows_by_prompt, key=lambda prompt: len(prompt) - cached[prompt])
        unique = [rows_by_prompt[prompt][0] for prompt in prompts]
        duplicates = [(index, row) for index, prompt in enumerate(prompts) for row in rows_by_prompt[prompt][1:]]
        self.rows = [*unique, *(row for _, row in duplicates)]
        self.active = list(self.rows)
        longest, ahead = max(len(row.prompt_tokens) for row in rows), max(row.max_new_tokens for row in rows)
        self.kv_cache = DenseKVCache(len(rows), longest + min(RESERVED_COLUMNS, ahead))
        #: The distinct prompts, those of the first rows; and for every row the index of its prompt.
        self.prompts = [row.prompt_tokens for row in unique]
        self.source = [*range(len(unique)), *(index for index, _ in duplicates)]
        #: Number of cached tokens of each prompt.
        self.cached = [cached[prompt] for prompt in prompts]
        self._copy_cached([found[prompt] for prompt in prompts])
        self.sampler = Sampler(self.rows, device)

    def _copy_cached(self, found: Sequence[PrefixMatch | None]) -> None:
        """Copy the cached prefixes into this group's KV cache."""
        by_cache: dict[DenseKVCache, list[tuple[int, PrefixMatch]]] = {}
        for index, prefix in enumerate(found):
            if prefix is not None:
                by_cache.setdefault(prefix.kv_cache, []).append((index, prefix))
        for kv_cache, some in by_cache.items():
            indices, rows = [index for index, _ in some], [prefix.row for _, prefix in some]
            self.kv_cache.copy(kv_cache, indices, rows, max(prefix.length for _, prefix in some))

    def prefill(self, model: Any) -> None:
        """Prefill the new tokens of all prompts; sets the logits of the next token."""
        new = [(index, range(cached, len(self.prompts[index]))) for index, cached in enumerate(self.cached)]
        chunks = prefill_chunks(new, PREFILL_TOKENS.get(self.device.type, PREFILL_TOKENS["cuda"]))
        logits_CV = torch.cat([self._prefill_chunk(model, pieces) for pieces in chunks])
        if duplicates := range(len(self.prompts), len(self.rows)):
            longest = max(map(len, self.prompts))
            self.kv_cache.copy(self.kv_cache, duplicates, [self.source[row] for row in duplicates], longest)
        self.logits_BV = logits_CV[torch.tensor(self.source, device=self.device)]

    def _prefill_chunk(self, model: Any, pieces: list[Piece]) -> torch.Tensor:
        """One forward pass; the logits after the prompts that end in it."""
        ids_M, ends = packed_inputs(self.prompts, pieces, self.device)
        return forward_packed(model, ids_M, [self._attention_batch(run) for run in similar_lengths(pieces)], ends)

    def _attention_batch(self, pieces: Sequence[Piece]) -> DenseAttentionBatch:
        """The attention batch of pieces in consecutive rows."""
        return DenseAttentionBatch(**layout_of(pieces, self.device), kv_cache=self.kv_cache, first=pieces[0][0])

    def move_finished(self, tokens_B: torch.Tensor) -> dict[int, list[int]]:
        """Move finished rows behind the running ones; returns the tokens of the rows that finished, by row index.

        `tokens_B`: the last tokens of all rows that were running.
        """
        gaps, movers, order = compaction(self.active)
        count, before = len(order), len(self.active)
        if count < before:
            if gaps:
                self.kv_cache.swap(gaps, movers)
            for gap, mover in zip(gaps, movers):
                self.rows[gap], self.rows[mover] = self.rows[mover], self.rows[gap]
            if count:
                self.sampler.select(order)
                tokens_B = tokens_B[torch.tensor(order, device=self.device)]
        self.active = self.rows[:count]
        self.tokens_B = tokens_B
        finished = enumerate(self.rows[count:before], start=count)  # they are not moved again
        return {index: row.prompt_tokens + row.tokens[:-1] for index, row in finished}

    def decode_batch(self) -> DenseAttentionBatch:
        """The attention batch of the last token of every running row."""
        positions = [len(row.prompt_tokens) + len(row.tokens) - 1 for row in self.active]
        self.kv_cache.reserve(max(positions) + 1)
        return self._attention_batch([(row, range(last, last + 1)) for row, last in enumerate(positions)])


def prefill_chunks(pieces: Sequence[Piece], max_tokens: int) -> Iterator[list[Piece]]:
    """Pieces in chunks of at most `max_tokens` tokens, in order. A longer piece is split.

    >>> list(prefill_chunks([(0, range(3)), (1, range(2, 9))], 5))
    [[(0, range(0, 3))], [(1, range(2, 7))], [(1, range(7, 9))]]
    """
    chunk: list[Piece] = []
    size = 0
    for index, span in pieces:
        for start in range(span.start, span.stop, max_tokens):
            piece = range(start, min(start + max_tokens, span.stop))
            if size + len(piece) > max_tokens:
                yield chunk
                chunk, size = [], 0
            chunk.append((index, piece))
            size += len(piece)
    yield chunk


def packed_inputs(
    prompts: Sequence[Sequence[int]], pieces: Sequence[Piece], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token ids of all pieces as one sequence, and the indices in it of the last tokens of prompts."""
    ids = [token for index, span in pieces for token in prompts[index][span.start : span.stop]]
    sizes = torch.tensor([len(span) for _, span in pieces])
    finished = torch.tensor([span.stop == len(prompts[index]) for index, span in pieces])
    return torch.tensor(ids, device=device), (sizes.cumsum(0) - 1)[finished].to(device)


def layout_of(pieces: Sequence[Piece], device: torch.device) -> dict[str, Any]:
    """The arguments of `AttentionBatch` for pieces in consecutive rows."""
    sizes = np.array([len(span) for _, span in pieces])
    rows_M = np.repeat(np.arange(len(pieces)), sizes)
    starts_R = np.array([span.start for _, span in pieces]) - (np.cumsum(sizes) - sizes)
    return {
        "rows": len(pieces),
        "rows_M": torch.from_numpy(rows_M).to(device),
        "positions_M": torch.from_numpy(np.arange(len(rows_M)) + starts_R[rows_M]).to(device),
        "columns": max(span.stop for _, span in pieces),
        "max_query_len": int(sizes.max()),
    }


def compaction(rows: Sequence[Row]) -> tuple[list[int], list[int], list[int]]:
    """How to close the gaps of finished rows: the gaps, the rows that move into them, the resulting order of rows."""
    running = [index for index, row in enumerate(rows) if row.finish is None]
    order = list(range(len(running)))
    gaps = [index for index in order if rows[index].finish is not None]
    movers = running[len(running) - len(gaps) :]
    for gap, mover in zip(gaps, movers):
        order[gap] = mover
    return gaps, movers, order


def similar_lengths(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces, sorted by length, in runs of similar length: attention is padded to the longest piece of a run.

    >>> pieces = [(index, range(size)) for index, size in enumerate([1, 3, 40, 300, 310])]
    >>> [[len(span) for _, span in run] for run in similar_lengths(pieces)]
    [[1, 3, 40], [300, 310]]
    """
    run: list[Piece] = []
    for piece in pieces:
        if run and len(piece[1]) > max(_LENGTH_RATIO * len(run[0][1]), _SHORT):
            yield run
            run = []
        run.append(piece)
    yield run


@torch.inference_mode()
def decode_padded(model: Any, config: Any, rows: Sequence[Row], append: Append) -> None:
    """Generate token by token until every row is finished."""
    device = next(model.parameters()).device
    max_query_len = max(len(row.prompt_tokens) for row in rows)
    # Left-padded, so that the newest token of every row is in the last column. Padding is masked out.
    ids_BT = torch.zeros(len(rows), max_query_len, dtype=torch.long)
    mask_BT = torch.zeros(len(rows), max_query_len, dtype=torch.long)
    for index, row in enumerate(rows):
        ids_BT[index, max_query_len - len(row.prompt_tokens) :] = torch.tensor(row.prompt_tokens)
        mask_BT[index, max_query_len - len(row.prompt_tokens) :] = 1
    ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=config)
    active = list(rows)
    sampler = Sampler(rows, device)
    while True:
        logits_BV = model(
            input_ids=ids_BT,
            attention_mask=mask_BT,
            position_ids=positions_BT,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        if not any(map(_is_filled, cache.layers)):
            raise BackendError(f"{type(model).__name__} does not use transformers' KV cache")
        drawn_2B = sampler.draw(logits_BV, active)
        for row, token, logprob in zip(active, *drawn_2B.tolist()):
            if row.finish is None:
                append(row, int(token), logprob)
        staying = [index for index, row in enumerate(active) if row.finish is None]
        if not staying:
            return
        positions_BT = positions_BT[:, -1:] + 1
        ids_BT = drawn_2B[0].long()[:, None]
        # Rows cannot be removed from recurrent layers: finished rows stay in the batch and are ignored.
        recurrent = any(isinstance(layer, LinearAttentionCacheLayerMixin) for layer in cache.layers)
        if len(staying) < len(active) and not recurrent:
            keep = torch.tensor(staying, device=device)
            cache.batch_select_indices(keep)
            sampler.select(staying)
            ids_BT, mask_BT, positions_BT = ids_BT[keep], mask_BT[keep], positions_BT[keep]
            active = [active[index] for index in staying]
        mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(active), 1)], dim=1)


def _is_filled(layer: Any) -> bool:
    """Whether a forward pass has written to a cache layer."""
    marks = [value for name, value in vars(layer).items() if name.endswith("initialized")]
    return any(any(mark.values()) if isinstance(mark, dict) else mark for mark in marks)  # several states, or one
