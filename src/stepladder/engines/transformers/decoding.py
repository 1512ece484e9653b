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
from stepladder.engines.transformers.packed_attention import DenseKVCache, DenseAttentionBatch, AttentionBatch, read
from stepladder.engines.transformers.prefix_cache import PrefixMatch, PrefixCache
from stepladder.engines.transformers.sampling import Append, Row, Sampler

#: Rows of one block. A CPU saves by looking at no column too many, a GPU by starting few kernels.
BLOCK_ROWS = {"cpu": 32, "cuda": 512}
#: Columns reserved for what will be written; more are added when needed.
AHEAD = 64
#: Rows are alike if one has at most so many times the tokens to read of another, or few.
_LIKE, _SHORT = 2, 64
#: Most tokens of contexts that are read at once: bounds the memory that long ones take.
PASS_TOKENS = {"cpu": 8192, "cuda": 32768}


class PackedDecoding:
    """Rows under way, in groups that began together."""

    def __init__(self, model: Any, store: PrefixCache, append: Append) -> None:
        self.model = model
        self.store = store
        self.append = append
        self.device = next(model.parameters()).device
        self.groups: list[Group] = []

    @property
    def rows(self) -> int:
        """How many rows are being written."""
        return sum(len(group.alive) for group in self.groups)

    def close(self) -> None:
        """Give up rows under way, if there are any."""
        self.groups = []

    def fitting(self, rows: Sequence[Row]) -> int:
        """How many of these have room beside those under way: main memory has room for all."""
        return len(rows)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """Let rows join: read what is new in their contexts."""
        size = BLOCK_ROWS.get(self.device.type, BLOCK_ROWS["cuda"])
        rows = sorted(rows, key=lambda row: (len(row.tokens_in), row.tokens_in))  # like lengths together, equals too
        groups = [Group(rows[start : start + size], self.store, self.device) for start in range(0, len(rows), size)]
        for group in groups:
            group.read_context(self.model)
        self.groups += groups

    @torch.inference_mode()
    def step(self) -> list[Row]:
        """One token for every row; those that have ended with it."""
        drawn = [group.sampler.draw(group.logits_BV) for group in self.groups]
        tokens_B, logprobs_B = (torch.cat(parts) for parts in zip(*drawn))
        told = torch.stack([tokens_B.double(), logprobs_B.double()]).tolist()  # one wait for the device a token
        for row, token, logprob in zip((row for group in self.groups for row in group.alive), *told):
            self.append(row, int(token), logprob)
        ended = [row for group in self.groups for row in group.alive if row.finish is not None]
        for group, (tokens_G, _) in zip(self.groups, drawn):
            group.park_finished(tokens_G)
            self.store.add(group.block, group.take_parked())
        self.groups = [group for group in self.groups if group.alive]
        if self.groups:
            readings = [group.next_reading() for group in self.groups]
            logits_BV = read(self.model, torch.cat([group.tokens_B for group in self.groups]), readings, 0)
            for group, logits_GV in zip(
                self.groups, torch.split(logits_BV, [len(group.alive) for group in self.groups])
            ):
                group.logits_BV = logits_GV
        return ended


class Group:
    """The rows of a block, which begin together. Those that still write stand first."""

    #: What the next token is drawn from, and the token that was drawn last, of the rows that still write.
    logits_BV: torch.Tensor
    tokens_B: torch.Tensor

    def __init__(self, rows: list[Row], store: PrefixCache, device: torch.device) -> None:
        self.device = device
        by_context: dict[tuple[int, ...], list[Row]] = {}
        for row in rows:
            by_context.setdefault(tuple(row.tokens_in), []).append(row)
        # The last token of a context is read in any case: its logits are needed.
        found = {context: store.find(context[:-1]) for context in by_context}
        known = {context: prefix.length if prefix else 0 for context, prefix in found.items()}
        # Those with as much to read stand together.
        different = sorted(by_context, key=lambda context: len(context) - known[context])
        leaders = [by_context[context][0] for context in different]
        followers = [(place, row) for place, context in enumerate(different) for row in by_context[context][1:]]
        self.rows = [*leaders, *(row for _, row in followers)]
        self.alive = list(self.rows)
        longest = max(len(row.tokens_in) for row in rows)
        self.block = DenseKVCache(len(rows), longest + min(AHEAD, max(row.limit for row in rows)))
        #: The different contexts: those of the first rows. The others have the same as one of them.
        self.contexts = [row.tokens_in for row in leaders]
        self.leader = [*range(len(leaders)), *(place for place, _ in followers)]
        #: How many tokens of each the store knew.
        self.known = [known[context] for context in different]
        self._take([found[context] for context in different])
        self.sampler = Sampler(self.rows, device)
        #: Rows that have ended and were not yet told to anybody, by their place in the block.
        self.parked: dict[int, Row] = {}

    def _take(self, found: Sequence[PrefixMatch | None]) -> None:
        """Copy what the store knows of each context."""
        by_block: dict[DenseKVCache, list[tuple[int, PrefixMatch]]] = {}
        for place, prefix in enumerate(found):
            if prefix is not None:
                by_block.setdefault(prefix.block, []).append((place, prefix))
        for block, some in by_block.items():
            places, rows = [place for place, _ in some], [prefix.row for _, prefix in some]
            self.block.copy(block, places, rows, max(prefix.length for _, prefix in some))

    def read_context(self, model: Any) -> None:
        """Read what is new in every context, up to the logits behind it."""
        logits_CV = torch.cat([self._read_pieces(model, pieces) for pieces in self._passes()])
        if followers := range(len(self.contexts), len(self.rows)):
            longest = max(map(len, self.contexts))
            self.block.copy(self.block, followers, [self.leader[row] for row in followers], longest)
        self.logits_BV = logits_CV[torch.tensor(self.leader, device=self.device)]

    def _passes(self) -> Iterator[list[tuple[int, range]]]:
        """The new tokens, by context and positions, in passes of bounded size. A longer context takes several."""
        pieces: list[tuple[int, range]] = []
        size, most = 0, PASS_TOKENS.get(self.device.type, PASS_TOKENS["cuda"])
        for place, (context, known) in enumerate(zip(self.contexts, self.known)):
            for start in range(known, len(context), most):
                piece = range(start, min(start + most, len(context)))
                if size + len(piece) > most:
                    yield pieces
                    pieces, size = [], 0
                pieces.append((place, piece))
                size += len(piece)
        yield pieces

    def _read_pieces(self, model: Any, pieces: list[tuple[int, range]]) -> torch.Tensor:
        """One pass; the logits behind the contexts that end in it."""
        device = self.device
        sizes = torch.tensor([len(positions) for _, positions in pieces])
        line = [
            token for place, positions in pieces for token in self.contexts[place][positions.start : positions.stop]
        ]
        ended = torch.tensor([positions.stop == len(self.contexts[place]) for place, positions in pieces])
        ends = (sizes.cumsum(0) - 1)[ended].to(device)
        readings = [self._reading(some) for some in alike(pieces)]
        return read(model, torch.tensor(line, device=device), readings, ends)

    def _reading(self, pieces: Sequence[tuple[int, range]]) -> AttentionBatch:
        """Pieces of rows that stand side by side."""
        sizes = torch.tensor([len(positions) for _, positions in pieces])
        positions = [position for _, span in pieces for position in span]
        return DenseAttentionBatch(
            rows=len(pieces),
            rows_M=torch.arange(len(pieces)).repeat_interleave(sizes).to(self.device),
            positions_M=torch.tensor(positions, device=self.device),
            columns=max(span.stop for _, span in pieces),
            width=int(sizes.max()),
            block=self.block,
            first=pieces[0][0],
        )

    def park_finished(self, tokens_B: torch.Tensor) -> None:
        """Move rows that have ended behind the others. `tokens_B`: what all rows alive so far have just written."""
        staying = [index for index, row in enumerate(self.alive) if row.finish is None]
        count, before = len(staying), len(self.alive)
        if count < before:
            gaps = [index for index in range(count) if self.alive[index].finish is not None]
            movers = staying[count - len(gaps) :]
            if gaps:
                self.block.exchange(gaps, movers)
            for gap, mover in zip(gaps, movers):
                self.rows[gap], self.rows[mover] = self.rows[mover], self.rows[gap]
            staying = list(range(count))
            for gap, mover in zip(gaps, movers):
                staying[gap] = mover
            # From here on nothing moves them any more.
            self.parked.update((place, self.rows[place]) for place in range(count, before))
            if count:
                self.sampler.keep(staying)
                tokens_B = tokens_B[torch.tensor(staying, device=self.device)]
        self.alive = self.rows[:count]
        self.tokens_B = tokens_B

    def take_parked(self) -> dict[int, list[int]]:
        """The tokens of the rows that have ended since this was last asked, by their place in the block."""
        taken = {place: row.tokens_in + row.tokens[:-1] for place, row in self.parked.items()}
        self.parked.clear()
        return taken

    def next_reading(self) -> AttentionBatch:
        """The token that every living row has just written."""
        positions = [len(row.tokens_in) + len(row.tokens) - 1 for row in self.alive]
        self.block.reserve(max(positions) + 1)
        return DenseAttentionBatch(
            rows=len(positions),
            rows_M=torch.arange(len(positions), device=self.device),
            positions_M=torch.tensor(positions, device=self.device),
            columns=max(positions) + 1,
            width=1,
            block=self.block,
            first=0,
        )


def alike(pieces: Sequence[tuple[int, range]]) -> Iterator[list[tuple[int, range]]]:
    """Pieces, which come from short to long, in runs of like length: attention makes room for the longest of a run.

    >>> pieces = [(place, range(size)) for place, size in enumerate([1, 3, 40, 300, 310])]
    >>> [[len(span) for _, span in run] for run in alike(pieces)]
    [[1, 3, 40], [300, 310]]
    """
    run: list[tuple[int, range]] = []
    for piece in pieces:
        if run and len(piece[1]) > max(_LIKE * len(run[0][1]), _SHORT):
            yield run
            run = []
        run.append(piece)
    yield run


@torch.inference_mode()
def decode_padded(model: Any, config: Any, rows: Sequence[Row], append: Append) -> None:
    """Write on from every row, a token at a time, until the last one has ended."""
    device = next(model.parameters()).device
    width = max(len(row.tokens_in) for row in rows)
    # Left-padded, so that the newest token of every row is in the last column. The pad token is masked out.
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    mask_BT = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        ids_BT[index, width - len(row.tokens_in) :] = torch.tensor(row.tokens_in)
        mask_BT[index, width - len(row.tokens_in) :] = 1
    ids_BT, mask_BT = ids_BT.to(device), mask_BT.to(device)
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    cache = DynamicCache(config=config)
    alive = list(rows)
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
        for row, token, logprob in zip(alive, *drawn):
            if row.finish is None:
                append(row, int(token), logprob)
        staying = [index for index, row in enumerate(alive) if row.finish is None]
        if not staying:
            return
        positions_BT = positions_BT[:, -1:] + 1
        ids_BT = tokens_B[:, None]
        # Recurrent layers cannot give up rows: with them, rows that have ended stay in the batch, unread.
        if len(staying) < len(alive) and not any(map(_is_recurrent, cache.layers)):
            kept = torch.tensor(staying, device=device)
            cache.batch_select_indices(kept)
            sampler.keep(staying)
            ids_BT, mask_BT, positions_BT = ids_BT[kept], mask_BT[kept], positions_BT[kept]
            alive = [alive[index] for index in staying]
        mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(alive), 1)], dim=1)


def _is_recurrent(layer: Any) -> bool:
    return isinstance(layer, LinearAttentionCacheLayerMixin)


def _is_filled(layer: Any) -> bool:
    """Whether a forward pass left anything in a layer of the cache."""
    marks = [value for name, value in vars(layer).items() if name.endswith("initialized")]
    return any(any(mark.values()) if isinstance(mark, dict) else mark for mark in marks)  # several states, or one
