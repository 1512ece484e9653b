"""What a layer does with one new token a row beside multiplying matrices, in as few kernels as possible.

In: tensors by row. Out: the same numbers as torch's own operations give, up to rounding. On a GPU each function is one
kernel of Triton; elsewhere, and where Triton is missing, it is those operations.
"""

import torch
from torch.nn.functional import rms_norm, silu

from stepladder.engines.paged.triton_import import INTERPRETED, tl, triton

#: Numbers that one program handles, where rows are cut up.
_A_PROGRAM = 1024


def by_kernels(like: torch.Tensor) -> bool:
    """Whether there are kernels for such tensors."""
    return triton is not None and (like.is_cuda or INTERPRETED)


def add_and_norm(
    sum_RE: torch.Tensor, more_RE: torch.Tensor | None, weight_E: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add to a running sum, in place, and return its RMS norm."""
    if not by_kernels(sum_RE):
        if more_RE is not None:
            sum_RE += more_RE
        return rms_norm(sum_RE, weight_E.shape, weight_E, eps)
    rows, size = sum_RE.shape
    out_RE = torch.empty_like(sum_RE)
    with torch.cuda.device_of(sum_RE):  # type: ignore[no-untyped-call]
        _add_and_norm[(rows,)](
            sum_RE,
            sum_RE if more_RE is None else more_RE,
            weight_E,
            out_RE,
            sum_RE.stride(0),
            (sum_RE if more_RE is None else more_RE).stride(0),
            out_RE.stride(0),
            eps,
            size=size,
            block=triton.next_power_of_2(size),
            adds=more_RE is not None,
            num_warps=8 if size > 2 * _A_PROGRAM else 4,
        )
    return out_RE


def gated(gate_RI: torch.Tensor, up_RI: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    if not by_kernels(gate_RI):
        return silu(gate_RI) * up_RI
    rows, size = gate_RI.shape
    out_RI = gate_RI.new_empty(rows, size)
    with torch.cuda.device_of(gate_RI):  # type: ignore[no-untyped-call]
        _gated[(rows, triton.cdiv(size, _A_PROGRAM))](
            gate_RI,
            up_RI,
            out_RI,
            gate_RI.stride(0),
            up_RI.stride(0),
            out_RI.stride(0),
            size=size,
            block=min(_A_PROGRAM, triton.next_power_of_2(size)),
            num_warps=4,
        )
    return out_RI


def turn_and_store(
    query_RHD: torch.Tensor,
    key_RKD: torch.Tensor,
    value_RKD: torch.Tensor,
    cos_RD: torch.Tensor,
    sin_RD: torch.Tensor,
    keys_NKTD: torch.Tensor,
    values_NKTD: torch.Tensor,
    pages_R: torch.Tensor,
    offsets_R: torch.Tensor,
) -> torch.Tensor:
    """Turn queries and keys by their positions, and write keys and values to their pages; the queries."""
    if not by_kernels(query_RHD):
        keys_NKTD[pages_R, :, offsets_R] = _turned(key_RKD, cos_RD, sin_RD)
        values_NKTD[pages_R, :, offsets_R] = value_RKD
        return _turned(query_RHD, cos_RD, sin_RD)
    rows, heads, size = query_RHD.shape
    kept = key_RKD.shape[1]
    out_RHD = query_RHD.new_empty(rows, heads, size)
    with torch.cuda.device_of(query_RHD):  # type: ignore[no-untyped-call]
        _turn_and_store[(rows, heads + kept)](
            query_RHD,
            key_RKD,
            value_RKD,
            cos_RD,
            sin_RD,
            out_RHD,
            keys_NKTD,
            values_NKTD,
            pages_R,
            offsets_R,
            query_RHD.stride(0),
            key_RKD.stride(0),
            value_RKD.stride(0),
            cos_RD.stride(0),
            sin_RD.stride(0),
            *keys_NKTD.stride()[:3],
            *values_NKTD.stride()[:3],
            heads=heads,
            size=size,
            num_warps=1,
        )
    return out_RHD


def _turned(states_RHD: torch.Tensor, cos_RD: torch.Tensor, sin_RD: torch.Tensor) -> torch.Tensor:
    first, second = states_RHD.chunk(2, dim=-1)
    return states_RHD * cos_RD[:, None] + torch.cat([-second, first], dim=-1) * sin_RD[:, None]


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _add_and_norm(  # type: ignore[no-untyped-def]
        sum_at,
        more_at,
        weight_at,
        out_at,
        sum_row,
        more_row,
        out_row,
        eps,
        size: tl.constexpr,
        block: tl.constexpr,
        adds: tl.constexpr,
    ):
        """One row."""
        row = tl.program_id(0).to(tl.int64)
        place_E = tl.arange(0, block)
        there_E = place_E < size
        sum_E = tl.load(sum_at + row * sum_row + place_E, mask=there_E, other=0.0)
        if adds:
            more_E = tl.load(more_at + row * more_row + place_E, mask=there_E, other=0.0)
            sum_E = (sum_E.to(tl.float32) + more_E.to(tl.float32)).to(sum_E.dtype)
            tl.store(sum_at + row * sum_row + place_E, sum_E, mask=there_E)
        exact_E = sum_E.to(tl.float32)
        spread = tl.sum(exact_E * exact_E, axis=0) / size
        weight_E = tl.load(weight_at + place_E, mask=there_E, other=0.0).to(tl.float32)
        out_E = exact_E / tl.sqrt(spread + eps) * weight_E
        tl.store(out_at + row * out_row + place_E, out_E.to(sum_E.dtype), mask=there_E)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _gated(  # type: ignore[no-untyped-def]
        gate_at, up_at, out_at, gate_row, up_row, out_row, size: tl.constexpr, block: tl.constexpr
    ):
        """Some numbers of one row."""
        row = tl.program_id(0).to(tl.int64)
        place_I = tl.program_id(1) * block + tl.arange(0, block)
        there_I = place_I < size
        gate_I = tl.load(gate_at + row * gate_row + place_I, mask=there_I, other=0.0)
        up_I = tl.load(up_at + row * up_row + place_I, mask=there_I, other=0.0)
        exact_I = gate_I.to(tl.float32)
        open_I = (exact_I / (1.0 + tl.exp(-exact_I))).to(gate_I.dtype)
        out_I = (open_I.to(tl.float32) * up_I.to(tl.float32)).to(gate_I.dtype)
        tl.store(out_at + row * out_row + place_I, out_I, mask=there_I)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _turn_and_store(  # type: ignore[no-untyped-def]
        query_at,
        key_at,
        value_at,
        cos_at,
        sin_at,
        out_at,
        keys_at,
        values_at,
        pages_at,
        offsets_at,
        query_row,
        key_row,
        value_row,
        cos_row,
        sin_row,
        keys_page,
        keys_head,
        keys_token,
        values_page,
        values_head,
        values_token,
        heads: tl.constexpr,
        size: tl.constexpr,
    ):
        """One row and one head: of a query, or else of a key and its value."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        half_D = tl.arange(0, size // 2)
        cos_at += row * cos_row
        sin_at += row * sin_row
        near_cos_D = tl.load(cos_at + half_D).to(tl.float32)
        far_cos_D = tl.load(cos_at + size // 2 + half_D).to(tl.float32)
        near_sin_D = tl.load(sin_at + half_D).to(tl.float32)
        far_sin_D = tl.load(sin_at + size // 2 + half_D).to(tl.float32)
        if head < heads:
            from_at = query_at + row * query_row + head * size
            to_at = out_at + (row * heads + head) * size
        else:
            page = tl.load(pages_at + row)
            offset = tl.load(offsets_at + row)
            from_at = key_at + row * key_row + (head - heads) * size
            to_at = keys_at + page * keys_page + (head - heads) * keys_head + offset * keys_token
            value_at += row * value_row + (head - heads) * size
            values_at += page * values_page + (head - heads) * values_head + offset * values_token
            tl.store(values_at + half_D, tl.load(value_at + half_D))
            tl.store(values_at + size // 2 + half_D, tl.load(value_at + size // 2 + half_D))
        near_D = tl.load(from_at + half_D)
        far_D = tl.load(from_at + size // 2 + half_D)
        turned_D = near_D.to(tl.float32) * near_cos_D - far_D.to(tl.float32) * near_sin_D
        tl.store(to_at + half_D, turned_D.to(near_D.dtype))
        turned_D = far_D.to(tl.float32) * far_cos_D + near_D.to(tl.float32) * far_sin_D
        tl.store(to_at + size // 2 + half_D, turned_D.to(near_D.dtype))
