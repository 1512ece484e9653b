"""Paged attention for decoding: one new token per row on a GPU.

In: queries of [rows, heads, size], paged keys and values, the page table, the position of each row's token. Out: the
attention output. torch's kernels need contiguous rows and process as many columns as the longest row has; here the cost
of a row is proportional to its length. Page table and positions are read on the device, so a CUDA graph works for rows
of any length.

Returns `None` if not supported: no Triton, no GPU, or another head size.
"""

from logging import getLogger

import torch
from torch.nn.functional import scaled_dot_product_attention

try:  # Triton comes with torch for CUDA
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    triton = tl = None

log = getLogger(__name__)

#: Whether Triton interprets kernels on the CPU, as in tests.
INTERPRETED = triton is not None and bool(triton.knobs.runtime.interpret)
#: Tokens per block, and the minimum number of queries of a matrix product on a GPU.
_COLUMNS, _QUERIES = 64, 16
#: Tolerance against torch's attention, relative.
_TOLERANCE = 0.03
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: The arguments of `decode_attention`.
_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float | None]


def decode_attention(
    query_RHD: torch.Tensor,
    keys_NKTD: torch.Tensor,
    values_NKTD: torch.Tensor,
    table_RP: torch.Tensor,
    positions_R: torch.Tensor,
    scale: float | None,
) -> torch.Tensor | None:
    """Softmax over the tokens up to each row's position. N pages of T tokens; heads K, H = K x G."""
    if triton is None or not _is_supported(query_RHD, keys_NKTD, values_NKTD):
        return None
    rows, heads, _ = query_RHD.shape
    out_RHD = query_RHD.new_empty(rows, heads, values_NKTD.shape[3])
    groups = heads // keys_NKTD.shape[1]
    inputs = query_RHD, keys_NKTD, values_NKTD, table_RP, positions_R, scale
    try:
        # Triton launches on the current device.
        with torch.cuda.device_of(query_RHD):  # type: ignore[no-untyped-call]
            _launch(inputs, out_RHD, groups)
        kind = query_RHD.dtype, groups, *keys_NKTD.shape[2:], *values_NKTD.shape[3:]
        if kind not in _checked:
            _check(inputs, out_RHD)
            _checked.add(kind)
    except torch.OutOfMemoryError:
        raise  # not the kernel's fault
    except Exception as error:  # noqa: BLE001 - Triton compiles when it is first called, and fails in many ways
        global _broken
        _broken = True
        log.warning("the Triton attention kernel is disabled, using torch's: %s", error)
        return None
    return out_RHD


def _check(inputs: _Inputs, found_RHD: torch.Tensor) -> None:
    """Compare a newly compiled kernel with torch's attention on a few rows; raises if they differ."""
    query_RHD, keys_NKTD, values_NKTD, table_RP, positions_R, scale = inputs
    few = slice(min(len(query_RHD), 4))
    pages = int(positions_R[few].max()) // keys_NKTD.shape[2] + 1
    keys_FKTD, values_FKTD = (
        states[table_RP[few, :pages]].transpose(1, 2).flatten(2, 3).float() for states in (keys_NKTD, values_NKTD)
    )
    query_FKGD = query_RHD[few].float().reshape(len(keys_FKTD), keys_FKTD.shape[1], -1, query_RHD.shape[2])
    visible = torch.arange(keys_FKTD.shape[2], device=query_RHD.device) <= positions_R[few, None]
    expected = scaled_dot_product_attention(
        query_FKGD, keys_FKTD, values_FKTD, attn_mask=visible[:, None, None], scale=scale
    ).flatten(1, 2)
    difference, size = (found_RHD[few].float() - expected).abs().max().item(), expected.abs().max().item()
    if not difference <= _TOLERANCE * max(size, 1.0):
        raise ArithmeticError(f"its output differs from torch's by {difference:.3g}, of {size:.3g}")


def _launch(inputs: _Inputs, out_RHD: torch.Tensor, groups: int) -> None:
    query_RHD, keys_NKTD, values_NKTD, table_RP, positions_R, scale = inputs
    (rows, _, size), (_, kv_heads, page, value_size) = query_RHD.shape, values_NKTD.shape
    _attend[(rows, kv_heads)](
        query_RHD,
        keys_NKTD,
        values_NKTD,
        out_RHD,
        table_RP,
        positions_R,
        *query_RHD.stride()[:2],
        *keys_NKTD.stride()[:3],
        *values_NKTD.stride()[:3],
        *out_RHD.stride()[:2],
        table_RP.stride(0),
        scale if scale is not None else size**-0.5,
        groups=groups,
        queries=max(triton.next_power_of_2(groups), _QUERIES),
        size=size,
        value_size=value_size,
        page=page,
        columns=_COLUMNS,
        num_warps=4,
    )


def _is_supported(query_RHD: torch.Tensor, keys_NKTD: torch.Tensor, values_NKTD: torch.Tensor) -> bool:
    sizes = keys_NKTD.shape[3], values_NKTD.shape[3]
    return (
        not _broken
        and (query_RHD.is_cuda or INTERPRETED)
        and query_RHD.dtype == keys_NKTD.dtype == values_NKTD.dtype
        and query_RHD.dtype in _DTYPES
        and all(16 <= size <= 256 and size & (size - 1) == 0 for size in sizes)
        and all(each.stride(-1) == 1 for each in (query_RHD, keys_NKTD, values_NKTD))
    )


#: Combinations of dtype and sizes that were compared with torch's attention.
_checked: set[tuple[object, ...]] = set()
#: Whether a launch or the comparison has failed.
_broken = False
if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _attend(  # type: ignore[no-untyped-def]
        query_ptr,
        keys_ptr,
        values_ptr,
        out_ptr,
        table_ptr,
        positions_ptr,
        query_row,
        query_head,
        keys_page,
        keys_head,
        keys_token,
        values_page,
        values_head,
        values_token,
        out_row,
        out_head,
        table_row,
        scale,
        groups: tl.constexpr,
        queries: tl.constexpr,
        size: tl.constexpr,
        value_size: tl.constexpr,
        page: tl.constexpr,
        columns: tl.constexpr,
    ):
        """One program per row and KV head: online softmax over blocks of tokens."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        length = tl.load(positions_ptr + row) + 1
        group_Q = tl.arange(0, queries)
        size_D, value_E, column_C = tl.arange(0, size), tl.arange(0, value_size), tl.arange(0, columns)
        heads_Q = head * groups + group_Q
        mask_Q = group_Q < groups
        query_QD = tl.load(
            query_ptr + row * query_row + heads_Q[:, None] * query_head + size_D[None, :],
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
            score_QC = tl.where(mask_C[None, :], score_QC, float("-inf"))
            new_max_Q = tl.maximum(max_Q, tl.max(score_QC, axis=1))
            p_QC = tl.exp(score_QC - new_max_Q[:, None])
            alpha_Q = tl.exp(max_Q - new_max_Q)
            value_C = page_C * values_page + slot_C * values_token
            value_CE = tl.load(values_ptr + value_C[:, None] + value_E[None, :], mask=mask_C[:, None], other=0.0)
            denominator_Q = denominator_Q * alpha_Q + tl.sum(p_QC, axis=1)
            acc_QE = acc_QE * alpha_Q[:, None] + tl.dot(p_QC.to(value_CE.dtype), value_CE, input_precision="ieee")
            max_Q = new_max_Q
        tl.store(
            out_ptr + row * out_row + heads_Q[:, None] * out_head + value_E[None, :],
            (acc_QE / denominator_Q[:, None]).to(query_QD.dtype),
            mask=mask_Q[:, None],
        )
