"""The attention kernel for one new token per row: what it leaves to torch. The kernel itself: tests/gpu."""

import torch

from stepladder.engines.paged.paged_attention import decode_attention
from tests.support.kv_pages import states


def test_what_it_does_not_know_is_left_to_torch() -> None:
    assert decode_attention(*states(2, 1, 1, 24, 32, torch.float32), None) is None  # no power of two
    query_RHD, keys_NKTD, *others = states(2, 1, 1, 16, 32, torch.float32)
    assert decode_attention(query_RHD, keys_NKTD.to(torch.bfloat16), *others, None) is None  # type: ignore[call-arg]
