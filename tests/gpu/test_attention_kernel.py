"""The Triton kernels: on a GPU, or interpreted by Triton on a CPU (TRITON_INTERPRET=1)."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from stepladder.engines.paged import paged_attention as decode_kernel
from stepladder.engines.paged.kv_cache import PAGE_SIZE
from stepladder.engines.paged.paged_attention import paged_attention, store_pages, tiles_of
from stepladder.engines.paged.triton_launch import INTERPRETED
from tests.support.kv_pages import DEVICE, states

_HERE = decode_kernel.triton is not None and (torch.cuda.is_available() or INTERPRETED)
needs_triton = pytest.mark.skipif(
    not _HERE, reason="there is no Triton, or no GPU for it (TRITON_INTERPRET=1 does too)"
)
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16  # Triton acts bf16 out wrongly


def together(states_NKTD: torch.Tensor, table_RP: torch.Tensor) -> torch.Tensor:
    """The pages of each row behind one another."""
    return torch.stack([torch.cat([states_NKTD[page] for page in pages], dim=1) for pages in table_RP])


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["fp32", "half"])
@pytest.mark.parametrize("shape", [(5, 3, 3, 64, 150), (2, 2, 6, 128, 70), (3, 4, 1, 16, 64)], ids=str)
def test_it_attends_as_torch_does(shape: tuple[int, int, int, int, int], dtype: torch.dtype) -> None:
    rows, kept, groups, size, _ = shape
    query_RHD, keys_NKTD, values_NKTD, table_RP, rows_R, positions_R = states(*shape, dtype)
    found = paged_attention(query_RHD, keys_NKTD, values_NKTD, table_RP, rows_R, positions_R, 0.2)
    assert found is not None
    keys_RKTD, values_RKTD = together(keys_NKTD, table_RP), together(values_NKTD, table_RP)
    seen = (torch.arange(keys_RKTD.shape[2], device=DEVICE) <= positions_R[:, None])[:, None, None]
    grouped = query_RHD.reshape(rows, kept, groups, size)
    expected = scaled_dot_product_attention(grouped, keys_RKTD, values_RKTD, attn_mask=seen, scale=0.2)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    assert torch.allclose(found, expected.reshape(rows, kept * groups, size), atol=tolerance)


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=["fp32", "half"])
@pytest.mark.parametrize(("kept", "groups", "size"), [(3, 3, 64), (2, 6, 128), (4, 1, 16)], ids=str)
def test_rows_of_many_tokens_attend_as_torch_does(kept: int, groups: int, size: int, dtype: torch.dtype) -> None:
    sizes, columns = [1, 40, 7, 90], 130  # of these, the last tokens of each row are new
    _, keys_NKTD, values_NKTD, table_RP, _, _ = states(len(sizes), kept, groups, size, columns, dtype)
    ends = [130, 40, 100, 91]
    rows_M = torch.cat([torch.full((count,), row) for row, count in enumerate(sizes)]).to(DEVICE)
    positions_M = torch.cat([torch.arange(end - count, end) for end, count in zip(ends, sizes)]).to(DEVICE)
    query_MHD = torch.randn(kept * groups, len(rows_M), size).to(DEVICE, dtype).transpose(0, 1)
    tiles_3X = tiles_of(sizes, groups, torch.device(DEVICE))
    found = paged_attention(query_MHD, keys_NKTD, values_NKTD, table_RP, rows_M, positions_M, None, tiles_3X)
    assert found is not None
    keys_MKTD, values_MKTD = (together(each, table_RP)[rows_M] for each in (keys_NKTD, values_NKTD))
    seen = (torch.arange(keys_MKTD.shape[2], device=DEVICE) <= positions_M[:, None])[:, None, None]
    grouped = query_MHD.reshape(-1, kept, groups, size)
    expected = scaled_dot_product_attention(grouped, keys_MKTD, values_MKTD, attn_mask=seen)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    assert torch.allclose(found, expected.reshape(found.shape), atol=tolerance)


@needs_triton
@pytest.mark.parametrize("shape", [(5, 3, 3, 64, 150), (2, 1, 6, 128, 70)], ids=str)
def test_keys_and_values_are_written_to_their_places(shape: tuple[int, int, int, int, int]) -> None:
    rows, kept, _, size, _ = shape
    _, keys_NKTD, values_NKTD, table_RP, rows_R, positions_R = states(*shape, torch.float32)
    key_RKD, value_RKD = (torch.randn(kept, rows, size, device=DEVICE).transpose(0, 1) for _ in range(2))
    expected = []
    for states_NKTD, state_RKD in ((keys_NKTD, key_RKD), (values_NKTD, value_RKD)):
        copied = states_NKTD.clone()
        copied[table_RP[rows_R, positions_R // PAGE_SIZE], :, positions_R % PAGE_SIZE] = state_RKD
        expected.append(copied)
    assert store_pages(key_RKD, value_RKD, keys_NKTD, values_NKTD, table_RP, rows_R, positions_R)
    assert torch.equal(keys_NKTD, expected[0])
    assert torch.equal(values_NKTD, expected[1])


@needs_triton
def test_what_lies_beyond_a_row_is_not_looked_at() -> None:
    asked = states(3, 1, 2, 16, 80, torch.float32)
    _, keys_NKTD, values_NKTD, table_RP, _, positions_R = asked
    before = paged_attention(*asked, None)
    for pages, position in zip(table_RP.tolist(), positions_R.tolist()):
        for place, page in enumerate(pages):
            for buffer in (keys_NKTD, values_NKTD):
                buffer[page, :, max(position + 1 - place * PAGE_SIZE, 0) :] = float("nan")
    after = paged_attention(*asked, None)
    assert before is not None
    assert after is not None
    assert torch.equal(before, after)


@needs_triton
def test_a_kernel_that_computes_something_else_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(_inputs: object, out: torch.Tensor) -> None:
        out.fill_(7.0)

    monkeypatch.setattr(decode_kernel, "_launch", wrong)
    monkeypatch.setattr(decode_kernel.LAUNCHER, "broken", False)
    monkeypatch.setattr(decode_kernel.LAUNCHER, "checked", set())
    assert paged_attention(*states(2, 1, 1, 16, 32, torch.float32), None) is None
    assert decode_kernel.LAUNCHER.broken
    assert "differs from torch's" in caplog.text


@needs_triton
def test_a_kernel_that_cannot_be_made_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no C compiler was found")

    monkeypatch.setattr(decode_kernel, "_launch", fail)
    monkeypatch.setattr(decode_kernel.LAUNCHER, "broken", False)
    arguments = states(2, 1, 1, 16, 32, torch.float32)
    assert paged_attention(*arguments, None) is None
    assert decode_kernel.LAUNCHER.broken
