"""Fused LoRA layers on a GPU."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from tests.support.lora_models import check_autocast

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["frozen fp32", "frozen bf16"])
@pytest.mark.parametrize("config", [LlamaConfig, Qwen3Config])
def test_under_autocast_they_differ_by_what_bf16_rounds(config: Any, dtype: torch.dtype) -> None:
    check_autocast(config, dtype, "cuda")
