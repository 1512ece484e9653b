"""The decoding loops: rows go in, and every row comes out with what was written.

`PackedDecoding` is for models with plain attention, which are most: no padding, keys and values written in place, rows
that have ended parked at the end of their block, beginnings that are known taken from the store, equal contexts read
once. Rows may join at any time, so nobody has to wait for the longest of a batch. `decode_padded` is for all others
(recurrent, sliding window ...): left-padded batches, transformers' own cache.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from stepladder.core.errors import BackendError
from stepladder.engines.transformers.packed_attention import (
    AttentionBatch,
    DenseAttentionBatch,
    DenseKVCache,
    forward_packed,
)
from stepladder.engines.transformers.prefix_cache import PrefixCache, PrefixMatch
from stepladder.engines.transformers.sampling import Append, Row, Sampler

#: Rows of one block. A CPU saves by looking at no column too many, a GPU by starting few kernels.
GROUP_ROWS = {"cpu": 32, "cuda": 512}
#: Columns reserved for what will be written; more are added when needed.
RESERVED_COLUMNS = 64
#: Rows are alike if one has at most so many times the tokens to read of another, or few.
_LENGTH_RATIO, _SHORT = 2, 64
#: Most tokens of contexts that are read at once: bounds the memory that long ones take.
PREFILL_TOKENS = {"cpu": 8192, "cuda": 32768}


class PackedDecoding:
    """Rows under way, in groups that began together."""

    def __init__(self, model: Any, cache: PrefixCache, append: Append) -> None:
        self.model = model
        self.cache = cache
        self.append = append
        self.device = next(model.parameters()).device
        self.groups: list[RowGroup] = []

    @property
    def rows(self) -> int:
        """How many rows are being written."""
        return sum(len(group.active) for group in self.groups)

    def close(self) -> None:
        """Give up rows under way, if there are any."""
        self.groups = []

    def num_admissible(self, rows: Sequence[Row]) -> int:
        """How many of these have room beside those under way: main memory has room for all."""
        return len(rows)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Let rows join: read what is new in their contexts."""
        size = GROUP_ROWS.get(self.device.type, GROUP_ROWS["cuda"])
        rows = sorted(
            rows, key=lambda row: (len(row.prompt_tokens), row.prompt_tokens)
        )  # like lengths together, equals too
        groups = [RowGroup(rows[start : start + size], self.cache, self.device) for start in range(0, len(rows), size)]
        for group in groups:
            group.prefill(self.model)
        self.groups += groups

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """One token for every row; those that have ended with it."""
        drawn = [group.sampler.draw(group.logits_BV) for group in self.groups]
        tokens_B, logprobs_B = (torch.cat(parts) for parts in zip(*drawn))
        values = torch.stack([tokens_B.double(), logprobs_B.double()]).tolist()  # one wait for the device a token
        for row, token, logprob in zip((row for group in self.groups for row in group.active), *values):
            self.append(row, int(token), logprob)
        ended = [row for group in self.groups for row in group.active if row.finish is not None]
        for group, (tokens_G, _) in zip(self.groups, drawn):
            group.move_finished(tokens_G)
            self.cache.add(group.kv_cache, group.take_finished())
        self.groups = [group for group in self.groups if group.active]
        if self.groups:
            batches = [group.decode_batch() for group in self.groups]
            logits_BV = forward_packed(self.model, torch.cat([group.tokens_B for group in self.groups]), batches, 0)
            for group, logits_GV in zip(
                self.groups, torch.split(logits_BV, [len(group.active) for group in self.groups])
            ):
                group.logits_BV = logits_GV
        return ended


class RowGroup:
    """The rows of a block, which begin together. Those that still write stand first."""

    #: What the next token is drawn from, and the token that was drawn last, of the rows that still write.
    logits_BV: torch.Tensor
    tokens_B: torch.Tensor

    def __init__(self, rows: list[Row], cache: PrefixCache, device: torch.device) -> None:
        self.device = device
        rows_by_prompt: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            rows_by_prompt.setdefault(tuple(row.prompt_tokens), []).append(row)
        # The last token of a context is read in any case: its logits are needed.
        found = {prompt: cache.find(prompt[:-1]) for prompt in rows_by_prompt}
        cached = {prompt: prefix.length if prefix else 0 for prompt, prefix in found.items()}
        # Those with as much to read stand together.
        prompts = sorted(rows_by_prompt, key=lambda prompt: len(prompt) - cached[prompt])
        unique = [rows_by_prompt[prompt][0] for prompt in prompts]
        duplicates = [(index, row) for index, prompt in enumerate(prompts) for row in rows_by_prompt[prompt][1:]]
        self.rows = [*unique, *(row for _, row in duplicates)]
        self.active = list(self.rows)
        longest = max(len(row.prompt_tokens) for row in rows)
        self.kv_cache = DenseKVCache(
            len(rows), longest + min(RESERVED_COLUMNS, max(row.max_new_tokens for row in rows))
        )
        #: The different contexts: those of the first rows. The others have the same as one of them.
        self.prompts = [row.prompt_tokens for row in unique]
        self.source = [*range(len(unique)), *(index for index, _ in duplicates)]
        #: How many tokens of each the store knew.
        self.cached = [cached[prompt] for prompt in prompts]
        self._copy_cached([found[prompt] for prompt in prompts])
        self.sampler = Sampler(self.rows, device)
        #: Rows that have ended and were not yet told to anybody, by their place in the block.
        self.finished: dict[int, Row] = {}

    def _copy_cached(self, found: Sequence[PrefixMatch | None]) -> None:
        """Copy what the store knows of each context."""
        by_block: dict[DenseKVCache, list[tuple[int, PrefixMatch]]] = {}
        for index, prefix in enumerate(found):
            if prefix is not None:
                by_block.setdefault(prefix.kv_cache, []).append((index, prefix))
        for kv_cache, some in by_block.items():
            indices, rows = [index for index, _ in some], [prefix.row for _, prefix in some]
            self.kv_cache.copy(kv_cache, indices, rows, max(prefix.length for _, prefix in some))

    def prefill(self, model: Any) -> None:
        """Read what is new in every context, up to the logits behind it."""
        logits_CV = torch.cat([self._prefill_chunk(model, pieces) for pieces in self._chunks()])
        if duplicates := range(len(self.prompts), len(self.rows)):
            longest = max(map(len, self.prompts))
            self.kv_cache.copy(self.kv_cache, duplicates, [self.source[row] for row in duplicates], longest)
        self.logits_BV = logits_CV[torch.tensor(self.source, device=self.device)]

    def _chunks(self) -> Iterator[list[tuple[int, range]]]:
        """The new tokens, by context and positions, in passes of bounded size. A longer context takes several."""
        pieces: list[tuple[int, range]] = []
        size, most = 0, PREFILL_TOKENS.get(self.device.type, PREFILL_TOKENS["cuda"])
        for index, (prompt, cached) in enumerate(zip(self.prompts, self.cached)):
            for start in range(cached, len(prompt), most):
                piece = range(start, min(start + most, len(prompt)))
                if size + len(piece) > most:
                    yield pieces
                    pieces, size = [], 0
                pieces.append((index, piece))
                size += len(piece)
        yield pieces

    def _prefill_chunk(self, model: Any, pieces: list[tuple[int, range]]) -> torch.Tensor:
        """One pass; the logits behind the contexts that end in it."""
        device = self.device
        sizes = torch.tensor([len(positions) for _, positions in pieces])
        tokens = [
            token for index, positions in pieces for token in self.prompts[index][positions.start : positions.stop]
        ]
        ended = torch.tensor([positions.stop == len(self.prompts[index]) for index, positions in pieces])
        ends = (sizes.cumsum(0) - 1)[ended].to(device)
        batches = [self._attention_batch(some) for some in similar_lengths(pieces)]
        return forward_packed(model, torch.tensor(tokens, device=device), batches, ends)

    def _attention_batch(self, pieces: Sequence[tuple[int, range]]) -> AttentionBatch:
        """Pieces of rows that stand side by side."""
        sizes = torch.tensor([len(positions) for _, positions in pieces])
        positions = [position for _, span in pieces for position in span]
        return DenseAttentionBatch(
            rows=len(pieces),
            rows_M=torch.arange(len(pieces)).repeat_interleave(sizes).to(self.device),
            positions_M=torch.tensor(positions, device=self.device),
            columns=max(span.stop for _, span in pieces),
            max_query_len=int(sizes.max()),
            kv_cache=self.kv_cache,
            first=pieces[0][0],
        )

    def move_finished(self, tokens_B: torch.Tensor) -> None:
        """Move rows that have ended behind the others. `tokens_B`: what all rows alive so far have just written."""
        staying = [index for index, row in enumerate(self.active) if row.finish is None]
        count, before = len(staying), len(self.active)
        if count < before:
            gaps = [index for index in range(count) if self.active[index].finish is not None]
            movers = staying[count - len(gaps) :]
            if gaps:
                self.kv_cache.swap(gaps, movers)
            for gap, mover in zip(gaps, movers):
                self.rows[gap], self.rows[mover] = self.rows[mover], self.rows[gap]
            staying = list(range(count))
            for gap, mover in zip(gaps, movers):
                staying[gap] = mover
            # From here on nothing moves them any more.
            self.finished.update((index, self.rows[index]) for index in range(count, before))
            if count:
                self.sampler.select(staying)
                tokens_B = tokens_B[torch.tensor(staying, device=self.device)]
        self.active = self.rows[:count]
        self.tokens_B = tokens_B

    def take_finished(self) -> dict[int, list[int]]:
        """The tokens of the rows that have ended since this was last asked, by their place in the block."""
        finished = {index: row.prompt_tokens + row.tokens[:-1] for index, row in self.finished.items()}
        self.finished.clear()
        return finished

    def decode_batch(self) -> AttentionBatch:
        """The token that every living row has just written."""
        positions = [len(row.prompt_tokens) + len(row.tokens) - 1 for row in self.active]
        self.kv_cache.reserve(max(positions) + 1)
        return DenseAttentionBatch(
            rows=len(positions),
            rows_M=torch.arange(len(positions), device=self.device),
            positions_M=torch.tensor(positions, device=self.device),
            columns=max(positions) + 1,
            max_query_len=1,
            kv_cache=self.kv_cache,
            first=0,
        )


def similar_lengths(pieces: Sequence[tuple[int, range]]) -> Iterator[list[tuple[int, range]]]:
    """Pieces, which come from short to long, in runs of like length: attention makes room for the longest of a run.

    >>> pieces = [(place, range(size)) for place, size in enumerate([1, 3, 40, 300, 310])]
    >>> [[len(span) for _, span in run] for run in alike(pieces)]
    [[1, 3, 40], [300, 310]]
    """
    run: list[tuple[int, range]] = []
    for piece in pieces:
        if run and len(piece[1]) > max(_LENGTH_RATIO * len(run[0][1]), _SHORT):
            yield run
            run = []
        run.append(piece)
    yield run


@torch.inference_mode()
def decode_padded(model: Any, config: Any, rows: Sequence[Row], append: Append) -> None:
    """Write on from every row, a token at a time, until the last one has ended."""
    device = next(model.parameters()).device
    max_query_len = max(len(row.prompt_tokens) for row in rows)
    # Left-padded, so that the newest token of every row is in the last column. The pad token is masked out.
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
            raise BackendError(f"{type(model).__name__} does not keep its memory in transformers' cache")
        tokens_B, logprobs_B = sampler.draw(logits_BV)
        drawn = torch.stack([tokens_B.double(), logprobs_B.double()]).tolist()
        for row, token, logprob in zip(active, *drawn):
            if row.finish is None:
                append(row, int(token), logprob)
        staying = [index for index, row in enumerate(active) if row.finish is None]
        if not staying:
            return
        positions_BT = positions_BT[:, -1:] + 1
        ids_BT = tokens_B[:, None]
        # Recurrent layers cannot give up rows: with them, rows that have ended stay in the batch, unread.
        if len(staying) < len(active) and not any(map(_is_recurrent, cache.layers)):
            keep = torch.tensor(staying, device=device)
            cache.batch_select_indices(keep)
            sampler.select(staying)
            ids_BT, mask_BT, positions_BT = ids_BT[keep], mask_BT[keep], positions_BT[keep]
            active = [active[index] for index in staying]
        mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(active), 1)], dim=1)


def _is_recurrent(layer: Any) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def _is_filled(layer: Any) -> bool:
    """Whether a forward pass left anything in a layer of the cache."""
    marks = [value for name, value in vars(layer).items() if name.endswith("initialized")]
    return any(any(mark.values()) if isinstance(mark, dict) else mark for mark in marks)  # several states, or one
