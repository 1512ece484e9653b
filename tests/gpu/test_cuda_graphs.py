"""Decoding steps recorded as CUDA graphs, on a GPU."""

import pytest
import torch

from stepladder.core.requests import Generate, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.prefix_cache import PrefixCache
from tests.support.paged_requests import TEXTS, replies, requests, same

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_on_a_gpu_passes_are_recorded_also_after_a_pool_has_grown() -> None:
    engine = TransformersEngine("tiny", device="cuda", dtype="fp32")
    for length in (20, 200, 450):
        replies(engine, [Generate((Segment(Author.PROMPT, "abc " * length),), sampling=Sampling(0.0, 1.0, 40))])
        (held,) = engine._idle_runners
        assert held.capture_enabled
        assert held._graphs


def test_recorded_passes_on_a_gpu_write_what_others_write() -> None:
    engines = [TransformersEngine("tiny", device="cuda", dtype="fp32") for _ in range(2)]
    engines[1].prefix_cache = PrefixCache(2**28)
    asked = requests(TEXTS * 3)
    ours, theirs = (replies(engine, asked) for engine in engines)
    assert all(same(a, b) for a, b in zip(ours, theirs))
    assert all(idle.capture_enabled and idle._graphs for idle in engines[0]._idle_runners)
