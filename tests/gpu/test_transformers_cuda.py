"""The transformers engine on a GPU."""

import pytest
import torch

from stepladder.core.grammars.grammar import Grammar, Text
from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.base import check_engine
from stepladder.engines.transformers.engine import TransformersEngine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_it_keeps_the_contract_on_cuda() -> None:
    check_engine(TransformersEngine("tiny", device="cuda", dtype="fp32"))
    check_engine(TransformersEngine("tiny", device="cuda", dtype="bf16"), logprob_tolerance=0.2)


def test_a_grammar_masks_the_same_tokens_on_cuda_as_on_a_cpu() -> None:
    grammar = Grammar((("<a>", Text(), "</a>"), ("<b>", Text(), "</b>")))
    asked = [
        Generate(
            (Segment(Author.PROMPT, f"{number}?"),),
            sampling=Sampling(float(number % 2), max_tokens=40),
            seed=number,
            grammar=grammar if number % 3 else None,
        )
        for number in range(12)
    ]
    ours, theirs = (TransformersEngine("tiny", device=each, dtype="fp32").generate(asked) for each in ("cuda", "cpu"))
    for request, here, there in zip(asked, ours, theirs):
        assert isinstance(here, Generation)
        assert isinstance(there, Generation)
        assert here.written.tokens == there.written.tokens
        assert here.written.logprobs == pytest.approx(there.written.logprobs, abs=1e-3)
        assert here.text[0] == "<" or request.grammar is None
