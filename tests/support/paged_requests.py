"""Requests for an engine with paged attention, and what it generates for them."""

import pytest

from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.transformers.engine import TransformersEngine

TEXTS = [f"Question {number}: " + "who founded the harbour of the grey island? " * (number % 5) for number in range(9)]


def requests(texts: list[str] = TEXTS, limit: int = 12) -> list[Generate]:
    """One a text: greedy and sampled ones, of different lengths."""
    return [
        Generate(
            (Segment(Author.PROMPT, text),),
            stop=("e", "th") if number % 3 == 1 else (),
            sampling=Sampling(float(number % 2), 0.9 if number % 4 == 3 else 1.0, 1 + (number * 5) % limit),
            seed=number,
        )
        for number, text in enumerate(texts)
    ]


def replies(engine: TransformersEngine, asked: list[Generate]) -> list[Generation]:
    found = engine.generate(asked)
    assert all(isinstance(each, Generation) for each in found)
    return [each for each in found if isinstance(each, Generation)]


def same(ours: Generation, theirs: Generation) -> bool:
    return ours.written.tokens == theirs.written.tokens and ours.written.logprobs == pytest.approx(
        theirs.written.logprobs, abs=1e-4
    )
