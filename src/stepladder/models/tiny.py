"""A language model with 0.1M random weights and a byte tokenizer, for tests and as a lower bound.

Out: an ordinary transformers model and tokenizer, created in memory without any download.
"""

from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 4096


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte, and an end-of-turn token."""
    vocabulary = {symbol: number for number, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")


def tiny_model(seed: int = 0, **changes: Any) -> LlamaForCausalLM:
    """A two-layer Llama with random weights from the seed; `changes` override its config."""
    settings: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "initializer_range": 0.2,  # large enough for a non-uniform next-byte distribution
        "bos_token_id": None,
        "eos_token_id": 256,
        "pad_token_id": 256,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: LlamaForCausalLM = LlamaForCausalLM(LlamaConfig(**{**settings, **changes})).eval()
    return model
