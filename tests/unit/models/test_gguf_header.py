"""Small GGUF files, which other tests take from here: a Llama of two layers, as llama.cpp's converter would write it;
and what is said of files that cannot be read.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepladder.core.errors import StepladderError
from stepladder.models.gguf.header import read_gguf
from stepladder.models.loading import load_model
from tests.support.gguf_files import WORDS, as_gguf, small_llama, write_gguf

# --- what is said of files that cannot be read --------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="gguf is not installed")
    return write_gguf(tmp_path_factory.mktemp("gguf") / "whole.gguf", as_gguf(small_llama()))


def test_the_head_of_a_file(whole: Path) -> None:
    head = read_gguf(whole)
    assert (head.architecture, head.architecture_setting("context_length"), head.tokenizer_setting("eos_token_id")) == (
        "llama",
        256,
        2,
    )
    assert head.tokenizer_setting("tokens") == list(WORDS)
    assert head.tensors["blk.1.ffn_down.weight"].shape == (64, 96)
    assert max(tensor.end for tensor in head.tensors.values()) <= whole.stat().st_size
    tensor = head.tensors["output_norm.weight"]
    stored = np.frombuffer(whole.read_bytes()[tensor.start : tensor.end], dtype="<f4")
    assert np.array_equal(stored, small_llama().model.norm.weight.detach().numpy())


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not GGUF": (lambda data: b"PK\x03\x04" + data[4:], r"is not a GGUF file: it begins with b'PK"),
    "a pointer": (lambda data: b"version https://git-lfs", "git-lfs pointer"),
    "empty": (lambda data: b"", "it is empty. Download it again"),
    "no head": (lambda data: data[:10], "its header is truncated"),
    "half a head": (lambda data: data[:2000], "its header is truncated"),
    "weights cut off": (
        lambda data: data[:-5000],
        r"has [\d,]+ bytes, and its weights end at [\d,]+\. Download it again",
    ),
    "nonsense": (lambda data: data[:24] + b"\xff" * (len(data) - 24), "its header is truncated or invalid"),
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
        ({"architecture": "bert"}, "contains a 'bert'; expected a causal language model"),
        ({"architecture": "t5"}, "contains a 't5'; expected a causal language model"),
        ({"general__type": "adapter"}, "is of type 'adapter'; expected a full model"),
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
