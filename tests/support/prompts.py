"""Prompts that share prefixes, and what an engine generates for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from stepladder.core.requests import Generate, Generation
from stepladder.engines.transformers.engine import TransformersEngine

QUESTIONS = ["Who designed the tower of Orm?", "Where was the designer of Orm Tower born, and when?", "Who?"]
FOUND = [" It is said that Ada Tarn did. ", " Velm is a town. ", " Nothing was found in the whole library of Velm. "]


def generate(engine: TransformersEngine, *requests: Generate) -> list[Generation]:
    replies = engine.generate(requests)
    assert all(isinstance(reply, Generation) for reply in replies), replies
    return replies  # type: ignore[return-value]


def assert_alike(ours: list[Generation], theirs: list[Generation]) -> None:
    assert [reply.written.tokens for reply in ours] == [reply.written.tokens for reply in theirs]
    for mine, other in zip(ours, theirs):
        assert mine.written.logprobs == pytest.approx(other.written.logprobs, abs=1e-4)


@contextmanager
def tokens_read(engine: TransformersEngine) -> Iterator[list[int]]:
    """How many tokens the network reads in each pass."""
    sizes: list[int] = []
    hook = engine.model.register_forward_pre_hook(
        lambda module, args, inputs: sizes.append(inputs["input_ids"].numel()), with_kwargs=True
    )
    yield sizes
    hook.remove()


def sliding(window: int = 12) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MistralConfig(
        vocab_size=257, num_key_value_heads=2, initializer_range=0.3, sliding_window=window, eos_token_id=256, **sizes
    )
    return MistralForCausalLM(config).eval()


def exact(name: str, prefix_bytes: int) -> TransformersEngine:
    """In double precision. In single, rounding decides the one draw in ten thousand that falls on a token's border."""
    engine = TransformersEngine(name, device="cpu", prefix_bytes=prefix_bytes)
    engine.model.double()
    return engine
