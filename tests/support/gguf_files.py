"""Small GGUF files: a Llama of two layers, as llama.cpp's converter would write it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("t h", "th e", "Ġ the", "1 2", "12 3")
WORDS = (*CONTROL, *bytes_to_unicode().values(), "th", "the", "Ġthe", "12", "123", "<think>")
KINDS = (3, 3, 3, *[1] * (len(WORDS) - 4), 4)
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADS, KEY_HEADS = 4, 2


def small_llama(*, tied: bool = True, bias: bool = False) -> LlamaForCausalLM:
    """Random weights that bf16 can hold, so that nothing is rounded on the way."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=16,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        attention_bias=bias,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            weights.copy_((torch.randn_like(weights) * 0.2 + (weights.dim() == 1)).bfloat16())
    return model


_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.layers": "blk",
}


def as_gguf(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The weights by llama.cpp's names, queries and keys in its order."""
    found = {}
    for name, weights in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        for ours, theirs in _NAMES.items():
            name = name.replace(ours, theirs)
        array = weights.float().numpy()
        if "attn_q" in name or "attn_k" in name:
            heads = HEADS if "attn_q" in name else KEY_HEADS
            halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = halves.swapaxes(1, 2).reshape(array.shape)
        found[name] = np.ascontiguousarray(array)
    return found


SETTINGS: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KEY_HEADS,
    "llama.rope.dimension_count": 16,
    "llama.rope.freq_base": 5000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.vocab_size": len(WORDS),
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": list(WORDS),
    "tokenizer.ggml.token_type": list(KINDS),
    "tokenizer.ggml.merges": list(MERGES),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": TEMPLATE,
}


def write_gguf(
    path: Path,
    tensors: Mapping[str, np.ndarray],
    *,
    kind: str = "F32",
    architecture: str = "llama",
    without: tuple[str, ...] = (),
    **changed: Any,
) -> Path:
    """A file with these tensors, matrices of a kind such as Q8_0. `changed`: settings, `__` for a dot."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import quantize

    writer = GGUFWriter(path, architecture)
    settings = SETTINGS | {name.replace("__", "."): value for name, value in changed.items()}
    for name, value in settings.items():
        if name not in without:
            _add(writer, name, value)
    wanted = GGMLQuantizationType[kind]
    for name, array in tensors.items():
        if array.ndim == 2 and kind != "F32":
            writer.add_tensor(name, quantize(array, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: Any, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)
