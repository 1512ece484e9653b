"""Small models of several architectures, with random weights."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

SMALL = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8}


def random_model(config: Any) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model
