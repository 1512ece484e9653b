"""Attention of one new token a row on a GPU, each to its own row alone, wherever that lies.

In: queries of [rows, heads, size], keys and values in pages, the pages of each row, the position of its token. Out:
what each query attends to. torch's own kernels want rows that lie together, and look at as many columns as the longest
has; here a row that is half as long costs half as much. Pages are looked up and tokens counted on the device, so a
recorded pass serves rows of any length.

`None` where it cannot be done: without Triton, without a GPU, or with heads of a size that it does not know.
"""

from logging import getLogger

import torch
from torch.nn.functional import scaled_dot_product_attention

from stepladder.engines.paged.triton_import import INTERPRETED, tl, triton

log = getLogger(__name__)

#: Tokens that are looked at together, and the fewest queries that a GPU multiplies at once.
_COLUMNS, _QUERIES = 64, 16
#: How far its results may be from torch's, as a share of them.
_TOLERANCE = 0.03
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


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
    args = query_RHD, keys_NKTD, values_NKTD, table_RP, positions_R, scale
    try:
        # Triton launches on the current device.
        with torch.cuda.device_of(query_RHD):  # type: ignore[no-untyped-call]
            _launch(*args, out_RHD, groups)
        kind = query_RHD.dtype, groups, *keys_NKTD.shape[2:], *values_NKTD.shape[3:]
        if kind not in _checked:
            _check(*args, out_RHD)
            _checked.add(kind)
    except torch.OutOfMemoryError:
        raise  # nothing is wrong with the kernel
    except Exception as error:  # noqa: BLE001 - Triton compiles when it is first called, and fails in many ways
        global _broken
        _broken = True
        log.warning("Triton's kernel cannot be used, torch's is instead: %s", error)
        return None
    return out_RHD


def _check(
    query_RHD: torch.Tensor,
    keys_NKTD: torch.Tensor,
    values_NKTD: torch.Tensor,
    table_RP: torch.Tensor,
    positions_R: torch.Tensor,
    scale: float | None,
    found_RHD: torch.Tensor,
) -> None:
    """Raise where a kernel that was just compiled says something else than torch's: of a few rows, once."""
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
        raise ArithmeticError(f"its attention differs from torch's by {difference:.3g}, of {size:.3g}")


def _launch(
    query_RHD: torch.Tensor,
    keys_NKTD: torch.Tensor,
    values_NKTD: torch.Tensor,
    table_RP: torch.Tensor,
    positions_R: torch.Tensor,
    scale: float | None,
    out_RHD: torch.Tensor,
    groups: int,
) -> None:
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


#: What was compared with torch's: dtypes and sizes.
_checked: set[tuple[object, ...]] = set()
#: Whether a launch has failed.
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
        """One row and the heads that share its keys: tokens are read once, in order, and nothing is kept of them."""
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
