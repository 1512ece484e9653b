"""Small GGUF files, which other tests take from here: a Llama of two layers, as llama.cpp's converter would write it;
and what is said of files that cannot be read.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

from stepladder.core.errors import StepladderError
from stepladder.models.gguf.header import read_gguf
from stepladder.models.loading import load_model

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


# --- what is said of files that cannot be read --------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="gguf is not installed")
    return write_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", as_gguf(small_llama()))


def test_the_head_of_a_file(whole: Path) -> None:
    head = read_gguf(whole)
    assert (head.architecture, head.own("context_length"), head.token("eos_token_id")) == ("llama", 256, 2)
    assert head.token("tokens") == list(WORDS)
    assert head.tensors["blk.1.ffn_down.weight"].shape == (64, 96)
    assert max(tensor.end for tensor in head.tensors.values()) <= whole.stat().st_size
    tensor = head.tensors["output_norm.weight"]
    stored = np.frombuffer(whole.read_bytes()[tensor.start : tensor.end], dtype="<f4")
    assert np.array_equal(stored, small_llama().model.norm.weight.detach().numpy())


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not GGUF": (lambda data: b"PK\x03\x04" + data[4:], r"is not a GGUF file: it begins with b'PK"),
    "a pointer": (lambda data: b"version https://git-lfs", "pointer of git-lfs"),
    "empty": (lambda data: b"", "it is empty. Get it again"),
    "no head": (lambda data: data[:10], "ends within its head"),
    "half a head": (lambda data: data[:2000], "ends within its head"),
    "weights cut off": (
        lambda data: data[:-5000],
        r"has [\d,]+ bytes, and its weights end at [\d,]+\. Get it again",
    ),
    "nonsense": (lambda data: data[:24] + b"\xff" * (len(data) - 24), "its head makes no sense"),
    "version 1": (lambda data: data[:4] + b"\x01" + data[5:], "is of version 1; expected 2 or 3"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_told_apart(damage: str, whole: Path, tmp_path: Path) -> None:
    change, message = DAMAGES[damage]
    file = tmp_path / "damaged.gguf"
    file.write_bytes(change(whole.read_bytes()))
    with pytest.raises(StepladderError, match=message):
        load_model(file, None, None)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache" / "models").glob("[!.]*"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"architecture": "bert"}, "holds a 'bert'; expected a causal language model"),
        ({"architecture": "t5"}, "holds a 't5'; expected a causal language model"),
        ({"general__type": "adapter"}, "is of type 'adapter'; expected a whole model"),
        ({"split__count": 3}, "is one of 3 parts"),
        ({"without": ("tokenizer.ggml.tokens",)}, "has no vocabulary"),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer of kind 'bert'; expected gpt2 or llama"),
        ({"tokenizer__ggml__eos_token_id": 5000}, "eos_token_id is 5000, and there are"),
    ],
    ids=["an encoder", "encoder-decoder", "an adapter", "a part", "no words", "strange words", "no such word"],
)
def test_files_of_other_kinds_are_refused(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    file = write_gguf(tmp_path / "other.gguf", {"token_embd.weight": np.zeros((4, 32), np.float32)}, **changed)
    with pytest.raises(StepladderError, match=message):
        load_model(file, None, None)


def test_without_the_library_it_is_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(StepladderError, match=r"pip install .*\[gguf\]'"):
        read_gguf(whole)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPLADDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
