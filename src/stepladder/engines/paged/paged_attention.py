"""Triton kernels for keys and values in pages: write those of new tokens, and attend to the pages.

In: the queries, keys and values of packed tokens, the pages, the page table, the position of each token. torch's
kernels need contiguous rows of equal length and a mask; here the cost of a token is proportional to its position,
whatever the other rows do. Everything that changes from pass to pass is read on the device, so a CUDA graph works for
rows of any length.

`paged_attention` returns None and `store_pages` False if they are not supported: no Triton, no GPU, another head size.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from stepladder.engines.paged.triton_launch import Launcher, triton

if triton is not None:
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

#: Columns per block; queries (tokens x heads that share keys) per tile, and the least of a matrix product on a GPU.
_COLUMNS, _TILE_QUERIES, _MIN_QUERIES = 64, 64, 16
#: Tolerance against torch's attention, relative.
_TOLERANCE = 0.03
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LAUNCHER = Launcher("the Triton attention kernels are")
#: Queries, keys, values, page table, rows and positions of the tokens, scale, tiles.
_Inputs = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    float | None,
    torch.Tensor | None,
]


def paged_attention(
    query_MHD: torch.Tensor,
    keys_NKTD: torch.Tensor,
    values_NKTD: torch.Tensor,
    table_RP: torch.Tensor,
    rows_M: torch.Tensor,
    positions_M: torch.Tensor,
    scale: float | None,
    tiles_3X: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """Causal attention of each token to its row. N pages of T tokens; heads K, H = K x G.

    `tiles_3X`: the tokens in tiles (`tiles_of`); without them there is one token per row.
    """
    if not is_supported(query_MHD, keys_NKTD, values_NKTD):
        return None
    out_MHD = query_MHD.new_empty(*query_MHD.shape[:2], values_NKTD.shape[3])
    inputs = query_MHD, keys_NKTD, values_NKTD, table_RP, rows_M, positions_M, scale, tiles_3X
    kind = "attend", tiles_3X is None, query_MHD.shape[1], query_MHD.dtype, *keys_NKTD.shape[1:], values_NKTD.shape[3]
    launched = LAUNCHER.launch(
        query_MHD, kind, lambda: _launch(inputs, out_MHD), lambda: _check_attention(inputs, out_MHD)
    )
    return out_MHD if launched else None


def store_pages(
    key_MKD: torch.Tensor,
    value_MKD: torch.Tensor,
    keys_NKTD: torch.Tensor,
    values_NKTD: torch.Tensor,
    table_RP: torch.Tensor,
    rows_M: torch.Tensor,
    positions_M: torch.Tensor,
) -> bool:
    """Write the keys and values of tokens to their pages; whether it was done."""
    if not is_supported(key_MKD, keys_NKTD, values_NKTD) or value_MKD.stride(-1) != 1:
        return False
    states = key_MKD, value_MKD
    kind = "store", key_MKD.dtype, *keys_NKTD.shape[1:], values_NKTD.shape[3]

    def launch() -> None:
        tokens, heads, size = key_MKD.shape
        _store[(tokens,)](
            *states,
            keys_NKTD,
            values_NKTD,
            table_RP,
            rows_M,
            positions_M,
            *key_MKD.stride()[:2],
            *value_MKD.stride()[:2],
            *keys_NKTD.stride()[:3],
            *values_NKTD.stride()[:3],
            table_RP.stride(0),
            heads,
            page=keys_NKTD.shape[2],
            padded_heads=triton.next_power_of_2(heads),
            size=size,
            value_size=value_MKD.shape[2],
            num_warps=1,
        )

    def check() -> None:
        for token in _few(rows_M):
            page, slot = (int(each) for each in _place(table_RP, rows_M, positions_M, token, keys_NKTD.shape[2]))
            for written, state in zip((keys_NKTD, values_NKTD), states):
                if not torch.equal(written[page, :, slot], state[token]):
                    raise ArithmeticError("it did not write what it should")

    return LAUNCHER.launch(key_MKD, kind, launch, check)


def tiles_of(sizes: Sequence[int], groups: int, device: torch.device) -> torch.Tensor:
    """The tokens of rows in tiles: by tile its row, its first token, its number of tokens.

    `sizes`: the number of tokens of each row. `groups`: query heads per key head.

    >>> tiles_of([3, 40], 2, torch.device("cpu")).tolist()
    [[0, 1, 1], [0, 3, 35], [3, 32, 8]]
    """
    most = _tile_tokens(groups)
    counts = np.asarray(sizes)
    per_row = -(-counts // most)
    rows = np.repeat(np.arange(len(counts)), per_row)
    index = np.arange(len(rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    starts = np.repeat(np.cumsum(counts) - counts, per_row) + index * most
    left = np.repeat(counts, per_row) - index * most
    return torch.from_numpy(np.stack([rows, starts, np.minimum(left, most)]).astype(np.int32)).to(device)


def is_supported(states_MHD: torch.Tensor, keys_NKTD: torch.Tensor, values_NKTD: torch.Tensor) -> bool:
    """Whether the kernels can be used with these queries or keys."""
    sizes = keys_NKTD.shape[3], values_NKTD.shape[3]
    return (
        LAUNCHER.usable(states_MHD)
        and states_MHD.dtype == keys_NKTD.dtype == values_NKTD.dtype
        and states_MHD.dtype in _DTYPES
        and all(16 <= size <= 256 and size & (size - 1) == 0 for size in sizes)
        and all(each.stride(-1) == 1 for each in (states_MHD, keys_NKTD, values_NKTD))
    )


def _check_attention(inputs: _Inputs, found_MHD: torch.Tensor) -> None:
    """Compare a newly compiled kernel with torch's attention on a few tokens; raises if they differ."""
    query_MHD, keys_NKTD, values_NKTD, table_RP, rows_M, positions_M, scale, _ = inputs
    few = torch.tensor(_few(rows_M), device=rows_M.device)
    pages = int(positions_M[few].max()) // keys_NKTD.shape[2] + 1
    keys_FKTD, values_FKTD = (
        states[table_RP[rows_M[few], :pages]].transpose(1, 2).flatten(2, 3).float()
        for states in (keys_NKTD, values_NKTD)
    )
    query_FKGD = query_MHD[few].float().reshape(len(keys_FKTD), keys_FKTD.shape[1], -1, query_MHD.shape[2])
    visible = torch.arange(keys_FKTD.shape[2], device=query_MHD.device) <= positions_M[few, None]
    expected = scaled_dot_product_attention(
        query_FKGD, keys_FKTD, values_FKTD, attn_mask=visible[:, None, None], scale=scale
    ).flatten(1, 2)
    difference, size = (found_MHD[few].float() - expected).abs().max().item(), expected.abs().max().item()
    if not difference <= _TOLERANCE * max(size, 1.0):
        raise ArithmeticError(f"its output differs from torch's by {difference:.3g}, of {size:.3g}")


def _few(rows_M: torch.Tensor) -> list[int]:
    """A few tokens, from the first to the last."""
    return sorted({0, len(rows_M) // 3, 2 * len(rows_M) // 3, len(rows_M) - 1})


def _place(
    table_RP: torch.Tensor, rows_M: torch.Tensor, positions_M: torch.Tensor, token: int, page: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return table_RP[rows_M[token], positions_M[token] // page], positions_M[token] % page


def _tile_tokens(groups: int) -> int:
    padded = 1 << (groups - 1).bit_length()
    return max(_TILE_QUERIES // padded, 1)


def _launch(inputs: _Inputs, out_MHD: torch.Tensor) -> None:
    query_MHD, keys_NKTD, values_NKTD, table_RP, _, positions_M, scale, tiles_3X = inputs
    (tokens, heads, size), (_, kv_heads, page, value_size) = query_MHD.shape, values_NKTD.shape
    groups = heads // kv_heads
    padded = triton.next_power_of_2(groups)
    queries = padded if tiles_3X is None else padded * _tile_tokens(groups)
    _attend[(tokens if tiles_3X is None else tiles_3X.shape[1], kv_heads)](
        query_MHD,
        keys_NKTD,
        values_NKTD,
        out_MHD,
        table_RP,
        positions_M,
        positions_M if tiles_3X is None else tiles_3X,
        *query_MHD.stride()[:2],
        *keys_NKTD.stride()[:3],
        *values_NKTD.stride()[:3],
        *out_MHD.stride()[:2],
        table_RP.stride(0),
        0 if tiles_3X is None else tiles_3X.shape[1],
        scale if scale is not None else size**-0.5,
        tiled=tiles_3X is not None,
        groups=groups,
        padded_groups=padded,
        queries=max(queries, _MIN_QUERIES),
        size=size,
        value_size=value_size,
        page=page,
        columns=_COLUMNS,
        num_warps=4,
    )


if triton is not None:
    # Another number must not compile another kernel.
    @triton.jit(do_not_specialize=["table_row", "tiles"])  # type: ignore[untyped-decorator, unused-ignore]
    def _attend(  # type: ignore[no-untyped-def]
        query_ptr,
        keys_ptr,
        values_ptr,
        out_ptr,
        table_ptr,
        positions_ptr,
        tiles_ptr,
        query_token,
        query_head,
        keys_page,
        keys_head,
        keys_token,
        values_page,
        values_head,
        values_token,
        out_token,
        out_head,
        table_row,
        tiles,
        scale,
        tiled: tl.constexpr,
        groups: tl.constexpr,
        padded_groups: tl.constexpr,
        queries: tl.constexpr,
        size: tl.constexpr,
        value_size: tl.constexpr,
        page: tl.constexpr,
        columns: tl.constexpr,
    ):
        """One program per tile of a row's tokens, and KV head: online softmax over blocks of columns."""
        tile = tl.program_id(0)
        head = tl.program_id(1)
        if tiled:
            row = tl.load(tiles_ptr + tile).to(tl.int64)
            first = tl.load(tiles_ptr + tiles + tile).to(tl.int64)
            count = tl.load(tiles_ptr + 2 * tiles + tile)
        else:
            row = tile.to(tl.int64)
            first = row
            count = 1
        query_Q = tl.arange(0, queries)
        size_D, value_E, column_C = tl.arange(0, size), tl.arange(0, value_size), tl.arange(0, columns)
        slot_Q, group_Q = query_Q // padded_groups, query_Q % padded_groups
        mask_Q = (slot_Q < count) & (group_Q < groups)
        token_Q = first + tl.minimum(slot_Q, count - 1)
        heads_Q = head * groups + group_Q
        position_Q = tl.load(positions_ptr + token_Q)
        length = tl.max(position_Q, axis=0) + 1
        query_QD = tl.load(
            query_ptr + token_Q[:, None] * query_token + heads_Q[:, None] * query_head + size_D[None, :],
            mask=mask_Q[:, None],
            other=0.0,
        )
        max_Q = tl.full([queries], float("-inf"), tl.float32)
        denominator_Q = tl.zeros([queries], tl.float32)
        acc_QE = tl.zeros([queries, value_size], tl.float32)
        keys_ptr += head * keys_head
        values_ptr += head * values_head
        table_ptr += row * table_row
        for start in range(0, length, columns):
            position_C = start + column_C
            mask_C = position_C < length
            page_C = tl.load(table_ptr + position_C // page, mask=mask_C, other=0)
            slot_C = position_C % page
            key_C = page_C * keys_page + slot_C * keys_token
            key_DC = tl.load(keys_ptr + key_C[None, :] + size_D[:, None], mask=mask_C[None, :], other=0.0)
            score_QC = tl.dot(query_QD, key_DC, input_precision="ieee") * scale
            score_QC = tl.where(position_C[None, :] <= position_Q[:, None], score_QC, float("-inf"))
            new_max_Q = tl.maximum(max_Q, tl.max(score_QC, axis=1))
            p_QC = tl.exp(score_QC - new_max_Q[:, None])
            alpha_Q = tl.exp(max_Q - new_max_Q)
            value_C = page_C * values_page + slot_C * values_token
            value_CE = tl.load(values_ptr + value_C[:, None] + value_E[None, :], mask=mask_C[:, None], other=0.0)
            denominator_Q = denominator_Q * alpha_Q + tl.sum(p_QC, axis=1)
            acc_QE = acc_QE * alpha_Q[:, None] + tl.dot(p_QC.to(value_CE.dtype), value_CE, input_precision="ieee")
            max_Q = new_max_Q
        tl.store(
            out_ptr + token_Q[:, None] * out_token + heads_Q[:, None] * out_head + value_E[None, :],
            (acc_QE / denominator_Q[:, None]).to(query_QD.dtype),
            mask=mask_Q[:, None],
        )

    @triton.jit(do_not_specialize=["table_row"])  # type: ignore[untyped-decorator, unused-ignore]
    def _store(  # type: ignore[no-untyped-def]
        key_ptr,
        value_ptr,
        keys_ptr,
        values_ptr,
        table_ptr,
        rows_ptr,
        positions_ptr,
        key_token,
        key_head,
        value_token,
        value_head,
        keys_page,
        keys_head,
        keys_slot,
        values_page,
        values_head,
        values_slot,
        table_row,
        heads,
        page: tl.constexpr,
        padded_heads: tl.constexpr,
        size: tl.constexpr,
        value_size: tl.constexpr,
    ):
        """One program per token: copies the keys and values of all heads."""
        token = tl.program_id(0).to(tl.int64)
        position = tl.load(positions_ptr + token)
        place = tl.load(table_ptr + tl.load(rows_ptr + token) * table_row + position // page)
        slot = position % page
        head_K = tl.arange(0, padded_heads)[:, None]
        size_D, value_E = tl.arange(0, size)[None, :], tl.arange(0, value_size)[None, :]
        mask_K = head_K < heads
        key_KD = tl.load(key_ptr + token * key_token + head_K * key_head + size_D, mask=mask_K)
        tl.store(keys_ptr + place * keys_page + slot * keys_slot + head_K * keys_head + size_D, key_KD, mask=mask_K)
        value_KE = tl.load(value_ptr + token * value_token + head_K * value_head + value_E, mask=mask_K)
        tl.store(
            values_ptr + place * values_page + slot * values_slot + head_K * values_head + value_E,
            value_KE,
            mask=mask_K,
        )
