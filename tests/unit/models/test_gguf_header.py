"""Small GGUF files, which other tests take from here: a Llama of two layers, as llama.cpp's converter would write it;
and what is said of files that cannot be read.
"""

import struct
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
    assert head.tensors["blk.1.ffn_down.weight"].data.shape == (64, 96)
    assert np.array_equal(head.tensors["output_norm.weight"].data, small_llama().model.norm.weight.detach().numpy())


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "not GGUF": (lambda data: b"PK\x03\x04" + data[4:], r"is not a GGUF file: it begins with b'PK"),
    "a pointer": (lambda data: b"version https://git-lfs", "git-lfs pointer"),
    "empty": (lambda data: b"", "is not a GGUF file: it begins with b''"),
    "no head": (lambda data: data[:10], "it has 10 bytes, and its header ends at 24 or later. Download it again"),
    "half a head": (lambda data: data[:2000], "it has 2,000 bytes, and its header ends at"),
    "weights cut off": (
        lambda data: data[:-5000],
        r"has [\d,]+ bytes, and its weights end at [\d,]+ or later\. Download it again",
    ),
    "nonsense": (lambda data: data[:24] + b"\xff" * (len(data) - 24), "its header ends at 18,446,744,073,709,551,"),
    "version 1": (lambda data: data[:4] + b"\x01" + data[5:], "version 1 which we cannot handle"),
    "more settings than bytes": (lambda data: data[:16] + b"\xff" * 8 + data[24:], "is damaged or incomplete"),
    "more tensors than bytes": (lambda data: data[:8] + b"\xff" * 8 + data[16:], "is damaged or incomplete"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_told_apart(damage: str, whole: Path, tmp_path: Path) -> None:
    change, message = DAMAGES[damage]
    file = tmp_path / "damaged.gguf"
    file.write_bytes(change(whole.read_bytes()))
    with pytest.raises(StepladderError, match=message) as told:
        load_model(file, None, None)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache" / "models").glob("[!.]*"))


def nested(depth: int) -> bytes:
    """A list in a list in a list ..., each with one entry; the innermost is empty."""
    return struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0)


HOSTILE: dict[str, tuple[bytes, int, bytes, str]] = {
    "alignment 0": (b"general.alignment", 4, struct.pack("<I", 0), "must be a non-zero power of two"),
    "alignment as text": (b"general.alignment", 8, struct.pack("<Q2s", 2, b"32"), "Bad type for general.alignment"),
    "lists in lists": (b"tokenizer.ggml.tokens", 9, nested(3), "has no vocabulary"),
    "lists without end": (b"tokenizer.ggml.tokens", 9, nested(5000), "recursion"),
    "a list of 2^60 bytes": (b"x", 9, struct.pack("<IQ", 0, 2**60), "and its header ends at"),
    "a list as long as the file": (b"x", 9, struct.pack("<IQ", 0, 1900) + bytes(1900), "more than 1,500 values"),
    "a text of 2^60 bytes": (b"x", 8, struct.pack("<Q", 2**60), "and its header ends at"),
    "a count as text": (b"split.count", 8, struct.pack("<Q3s", 3, b"two"), "split.count is 'two', expected int"),
    "tokens as a number": (b"tokenizer.ggml.tokens", 4, struct.pack("<I", 7), "tokens is 7, expected list"),
    "tokens as numbers": (b"tokenizer.ggml.tokens", 9, struct.pack("<IQII", 4, 2, 5, 6), "could not be unpacked"),
    "an id as text": (b"tokenizer.ggml.eos_token_id", 8, struct.pack("<Q1s", 1, b"2"), "is '2', expected int"),
    "layers without tensors": (
        b"llama.block_count",
        4,
        struct.pack("<I", 2**31),
        "is 2147483648, expected",
    ),
    "fewer than no layers": (
        b"llama.block_count",
        5,
        struct.pack("<i", -1),
        "block_count is -1, expected",
    ),
    "a width beyond tensors": (b"llama.embedding_length", 10, struct.pack("<Q", 2**62), "expected a number from 0 to"),
    "a width as text": (
        b"llama.embedding_length",
        8,
        struct.pack("<Q1s", 1, b"2"),
        "length is '2', expected",
    ),
    "widths as texts": (b"llama.feed_forward_length", 9, struct.pack("<IQQ1s", 8, 1, 1, b"2"), r"is \['2'\], expected"),
    "a base that is none": (b"llama.rope.freq_base", 6, struct.pack("<f", float("nan")), "is nan, expected a number"),
    "scaling by number": (b"llama.rope.scaling.type", 4, struct.pack("<I", 7), "scaling.type is 7, expected a name"),
    "a type that is none": (b"x", 77, b"", "is not a valid GGUFValueType"),
    "a name twice": (b"general.architecture", 8, struct.pack("<Q5s", 5, b"llama"), "Duplicate general.architecture"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_header_is_refused_in_one_line(attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.models.gguf.header._MAX_VALUES", 1500 if attack.startswith("a list as") else 2**20)
    name, kind, value, message = HOSTILE[attack]
    file = write_gguf(
        tmp_path / "hostile.gguf",
        as_gguf(small_llama()),
        without=(name.decode(), "tokenizer.ggml.token_type", "tokenizer.ggml.merges"),
    )
    data = file.read_bytes()
    (settings,) = struct.unpack_from("<Q", data, 16)
    added = struct.pack(f"<Q{len(name)}sI", len(name), name, kind) + value
    file.write_bytes(data[:16] + struct.pack("<Q", settings + 1) + added + data[24:] + bytes(4096))
    with pytest.raises(StepladderError, match=message) as told:
        load_model(file, None, None)
    assert "\n" not in str(told.value)


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
    file = write_gguf(tmp_path / "other.gguf", as_gguf(small_llama()), **changed)
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
