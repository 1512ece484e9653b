"""Triton kernels of a decode step besides matrix products: add + RMS norm, SwiGLU, rotary embedding + cache write.

In: tensors by row. Out: the results of torch's operations, up to rounding. Without a GPU or Triton, torch's operations
are used.
"""

import torch
from torch.nn.functional import rms_norm, silu

from stepladder.engines.paged.triton_import import INTERPRETED, tl, triton

#: Elements per program, for rows that are split.
_BLOCK_SIZE = 1024


def has_kernel(like: torch.Tensor) -> bool:
    """Whether there are kernels for tensors on this device."""
    return triton is not None and (like.is_cuda or INTERPRETED)


def add_rms_norm(
    residual_RE: torch.Tensor, delta_RE: torch.Tensor | None, weight_E: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add to the residual, in place, and return its RMS norm."""
    if not has_kernel(residual_RE):
        if delta_RE is not None:
            residual_RE += delta_RE
        return rms_norm(residual_RE, weight_E.shape, weight_E, eps)
    rows, size = residual_RE.shape
    out_RE = torch.empty_like(residual_RE)
    with torch.cuda.device_of(residual_RE):  # type: ignore[no-untyped-call]
        _add_and_norm[(rows,)](
            residual_RE,
            residual_RE if delta_RE is None else delta_RE,
            weight_E,
            out_RE,
            residual_RE.stride(0),
            (residual_RE if delta_RE is None else delta_RE).stride(0),
            out_RE.stride(0),
            eps,
            size=size,
            block=triton.next_power_of_2(size),
            adds=delta_RE is not None,
            num_warps=8 if size > 2 * _BLOCK_SIZE else 4,
        )
    return out_RE


def silu_and_mul(gate_RI: torch.Tensor, up_RI: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up."""
    if not has_kernel(gate_RI):
        return silu(gate_RI) * up_RI
    rows, size = gate_RI.shape
    out_RI = gate_RI.new_empty(rows, size)
    with torch.cuda.device_of(gate_RI):  # type: ignore[no-untyped-call]
        _gated[(rows, triton.cdiv(size, _BLOCK_SIZE))](
            gate_RI,
            up_RI,
            out_RI,
            gate_RI.stride(0),
            up_RI.stride(0),
            out_RI.stride(0),
            size=size,
            block=min(_BLOCK_SIZE, triton.next_power_of_2(size)),
            num_warps=4,
        )
    return out_RI


def rotary_and_store(
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
    """Apply the rotary embedding to queries and keys, write keys and values to the cache; returns the queries."""
    if not has_kernel(query_RHD):
        keys_NKTD[pages_R, :, offsets_R] = _rotated(key_RKD, cos_RD, sin_RD)
        values_NKTD[pages_R, :, offsets_R] = value_RKD
        return _rotated(query_RHD, cos_RD, sin_RD)
    rows, heads, size = query_RHD.shape
    kv_heads = key_RKD.shape[1]
    out_RHD = query_RHD.new_empty(rows, heads, size)
    with torch.cuda.device_of(query_RHD):  # type: ignore[no-untyped-call]
        _turn_and_store[(rows, heads + kv_heads)](
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


def _rotated(states_RHD: torch.Tensor, cos_RD: torch.Tensor, sin_RD: torch.Tensor) -> torch.Tensor:
    first, second = states_RHD.chunk(2, dim=-1)
    return states_RHD * cos_RD[:, None] + torch.cat([-second, first], dim=-1) * sin_RD[:, None]


if triton is not None:

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _add_and_norm(  # type: ignore[no-untyped-def]
        residual_ptr,
        delta_ptr,
        weight_ptr,
        out_ptr,
        residual_row,
        delta_row,
        out_row,
        eps,
        size: tl.constexpr,
        block: tl.constexpr,
        adds: tl.constexpr,
    ):
        """One program per row."""
        row = tl.program_id(0).to(tl.int64)
        offset_E = tl.arange(0, block)
        mask_E = offset_E < size
        residual_E = tl.load(residual_ptr + row * residual_row + offset_E, mask=mask_E, other=0.0)
        if adds:
            delta_E = tl.load(delta_ptr + row * delta_row + offset_E, mask=mask_E, other=0.0)
            residual_E = (residual_E.to(tl.float32) + delta_E.to(tl.float32)).to(residual_E.dtype)
            tl.store(residual_ptr + row * residual_row + offset_E, residual_E, mask=mask_E)
        float_E = residual_E.to(tl.float32)
        mean_square = tl.sum(float_E * float_E, axis=0) / size
        weight_E = tl.load(weight_ptr + offset_E, mask=mask_E, other=0.0).to(tl.float32)
        out_E = float_E / tl.sqrt(mean_square + eps) * weight_E
        tl.store(out_ptr + row * out_row + offset_E, out_E.to(residual_E.dtype), mask=mask_E)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _gated(  # type: ignore[no-untyped-def]
        gate_ptr, up_ptr, out_ptr, gate_row, up_row, out_row, size: tl.constexpr, block: tl.constexpr
    ):
        """One program per block of a row."""
        row = tl.program_id(0).to(tl.int64)
        offset_I = tl.program_id(1) * block + tl.arange(0, block)
        mask_I = offset_I < size
        gate_I = tl.load(gate_ptr + row * gate_row + offset_I, mask=mask_I, other=0.0)
        up_I = tl.load(up_ptr + row * up_row + offset_I, mask=mask_I, other=0.0)
        float_I = gate_I.to(tl.float32)
        silu_I = (float_I / (1.0 + tl.exp(-float_I))).to(gate_I.dtype)
        out_I = (silu_I.to(tl.float32) * up_I.to(tl.float32)).to(gate_I.dtype)
        tl.store(out_ptr + row * out_row + offset_I, out_I, mask=mask_I)

    @triton.jit  # type: ignore[untyped-decorator, unused-ignore]
    def _turn_and_store(  # type: ignore[no-untyped-def]
        query_ptr,
        key_ptr,
        value_ptr,
        cos_ptr,
        sin_ptr,
        out_ptr,
        keys_ptr,
        values_ptr,
        pages_ptr,
        offsets_ptr,
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
        """One program per row and head: a query head, or a key head with its value."""
        row = tl.program_id(0).to(tl.int64)
        head = tl.program_id(1)
        half_D = tl.arange(0, size // 2)
        cos_ptr += row * cos_row
        sin_ptr += row * sin_row
        first_cos_D = tl.load(cos_ptr + half_D).to(tl.float32)
        second_cos_D = tl.load(cos_ptr + size // 2 + half_D).to(tl.float32)
        first_sin_D = tl.load(sin_ptr + half_D).to(tl.float32)
        second_sin_D = tl.load(sin_ptr + size // 2 + half_D).to(tl.float32)
        if head < heads:
            source_ptr = query_ptr + row * query_row + head * size
            target_ptr = out_ptr + (row * heads + head) * size
        else:
            page = tl.load(pages_ptr + row)
            offset = tl.load(offsets_ptr + row)
            source_ptr = key_ptr + row * key_row + (head - heads) * size
            target_ptr = keys_ptr + page * keys_page + (head - heads) * keys_head + offset * keys_token
            value_ptr += row * value_row + (head - heads) * size
            values_ptr += page * values_page + (head - heads) * values_head + offset * values_token
            tl.store(values_ptr + half_D, tl.load(value_ptr + half_D))
            tl.store(values_ptr + size // 2 + half_D, tl.load(value_ptr + size // 2 + half_D))
        first_D = tl.load(source_ptr + half_D)
        second_D = tl.load(source_ptr + size // 2 + half_D)
        rotated_D = first_D.to(tl.float32) * first_cos_D - second_D.to(tl.float32) * first_sin_D
        tl.store(target_ptr + half_D, rotated_D.to(first_D.dtype))
        rotated_D = second_D.to(tl.float32) * second_cos_D + first_D.to(tl.float32) * second_sin_D
        tl.store(target_ptr + size // 2 + half_D, rotated_D.to(first_D.dtype))
