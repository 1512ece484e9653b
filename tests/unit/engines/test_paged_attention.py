"""The kernels for keys and values in pages: what they leave to torch. The kernels themselves: tests/gpu."""

import torch

from stepladder.engines.paged.paged_attention import paged_attention
from tests.support.kv_pages import states


def test_what_it_does_not_know_is_left_to_torch() -> None:
    assert paged_attention(*states(2, 1, 1, 24, 32, torch.float32), None) is None  # no power of two
    query_RHD, keys_NKTD, *others = states(2, 1, 1, 16, 32, torch.float32)
    assert paged_attention(query_RHD, keys_NKTD.to(torch.bfloat16), *others, None) is None  # type: ignore[call-arg]
