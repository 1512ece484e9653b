"""The transformers engine on a GPU."""

import pytest
import torch

from stepladder.engines.base import check_engine
from stepladder.engines.transformers.engine import TransformersEngine

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_it_keeps_the_contract_on_cuda() -> None:
    check_engine(TransformersEngine("tiny", device="cuda", dtype="fp32"))
    check_engine(TransformersEngine("tiny", device="cuda", dtype="bf16"), logprob_tolerance=0.2)
