"""Read and validate the header of a GGUF file.

In: a file. Out: `GGUF`, its settings and tensor table; or an error that says what is wrong with the file.

The gguf libraries take seconds for a header and do not detect truncated files; this reader takes less than a second
and reads no weights.
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command

#: struct formats of fixed-size settings, by type number. 8 is a string, 9 a list.
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _LIST = 8, 9

_VERSIONS = (2, 3)

#: Default alignment of the weights.
_ALIGNMENT = 32

#: Architecture names that transformers' list of supported architectures spells differently.
_TRANSFORMERS_NAMES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
}

#: Entries of that list that are not causal language models.
_NOT_CAUSAL = {"t5", "umt5", "general", "tokenizer"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """The shape and position of a tensor."""

    #: Outermost dimension first.
    shape: tuple[int, ...]
    #: Byte offset in the file.
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class GGUF:
    """The header of a GGUF file."""

    path: Path
    settings: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def architecture(self) -> str:
        """Such as llama or qwen2."""
        return str(self.settings["general.architecture"])

    def architecture_setting(self, setting: str) -> Any:
        """A setting of the architecture, such as `context_length`; None if missing."""
        return self.settings.get(f"{self.architecture}.{setting}")

    def tokenizer_setting(self, setting: str) -> Any:
        """A setting of the tokenizer, such as `eos_token_id`; None if missing."""
        return self.settings.get(f"tokenizer.ggml.{setting}")


def read_gguf(path: Path) -> GGUF:
    """The header of a file. Raises if the file is damaged or is not a causal language model."""
    _require_libraries()
    _expect_magic(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            header = _read(path, data)
        except (struct.error, UnicodeDecodeError, KeyError, MemoryError, OverflowError) as error:
            raise _damaged(path, "its header is truncated or invalid") from error
        size = len(data)
    _expect_language_model(header)
    end = max((tensor.end for tensor in header.tensors.values()), default=0)
    if size < end:
        raise _damaged(path, f"it has {size:,} bytes, and its weights end at {end:,}")
    return header


def _read(path: Path, data: mmap.mmap) -> GGUF:
    cursor = _Cursor(data, 4)
    version, tensor_count, setting_count = cursor.take("IQQ")
    if version not in _VERSIONS:
        raise StepladderError(f"GGUF file {path} is of version {version}; expected {' or '.join(map(str, _VERSIONS))}")
    settings = {}
    for _ in range(setting_count):
        name, (kind,) = cursor.string(), cursor.take("I")
        settings[name] = cursor.value(kind)
    settings["general.architecture"]  # required: raises a KeyError if missing
    table = []
    for _ in range(tensor_count):
        name, (dimensions,) = cursor.string(), cursor.take("I")
        *shape, kind, offset = cursor.take(f"{dimensions}QIQ")
        table.append((name, tuple(reversed(shape)), offset, _size_of(path, name, prod(shape), kind)))
    alignment = settings.get("general.alignment", _ALIGNMENT)
    begin = -(-cursor.position // alignment) * alignment
    tensors = {name: Tensor(shape, begin + at, begin + at + size) for name, shape, at, size in table}
    return GGUF(path, settings, tensors)


def _size_of(path: Path, name: str, numbers: int, kind: int) -> int:
    """The size of a tensor in bytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except ValueError as error:
        raise StepladderError(
            f"GGUF file {path}: weights of type {kind} ({name}) are unknown to this version of gguf"
        ) from error
    return numbers // block * block_bytes


@dataclass(slots=True)
class _Cursor:
    """Reads values sequentially."""

    data: mmap.mmap
    position: int

    def take(self, layout: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{layout}", self.data, self.position)
        self.position += struct.calcsize(f"<{layout}")
        return found

    def string(self) -> str:
        (length,) = self.take("Q")
        (text,) = self.take(f"{length}s")
        return bytes(text).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _LIST:
            return self.take(_FORMATS[kind])[0]
        kind, count = self.take("IQ")
        if kind in _FORMATS:
            return list(self.take(f"{count}{_FORMATS[kind]}"))
        return [self.value(kind) for _ in range(count)]


def _require_libraries() -> None:
    try:
        import gguf  # noqa: F401
        from transformers import GgufConfig  # noqa: F401
    except ImportError as error:
        raise StepladderError(
            f"GGUF files need gguf, and transformers 5.19 or newer ({error}): {install_command('gguf')}"
        ) from error


def _expect_magic(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(24)
    if not start:
        raise _damaged(path, "it is empty")
    if not start.startswith(b"GGUF"):
        pointer = ". It looks like a git-lfs pointer: download the file itself" if start[:8] == b"version " else ""
        raise StepladderError(f"{path} is not a GGUF file: it begins with {start[:4]!r}, not b'GGUF'{pointer}")


def _expect_language_model(header: GGUF) -> None:
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    path, settings = header.path, header.settings
    parts, kind = settings.get("split.count", 1), settings.get("general.type", "model")
    if parts > 1:
        raise StepladderError(
            f"GGUF file {path} is one of {parts} parts; merge them first: llama-gguf-split --merge FIRST OUTPUT"
        )
    if kind != "model":
        raise StepladderError(f"GGUF file {path} is of type '{kind}'; expected a full model")
    known = {*GGUF_SUPPORTED_ARCHITECTURES, "qwen35", "qwen35moe"} - _NOT_CAUSAL
    if _TRANSFORMERS_NAMES.get(header.architecture, header.architecture) not in known:
        raise StepladderError(
            f"GGUF file {path} contains a '{header.architecture}'; expected a causal language model of a kind that "
            f"transformers reads from GGUF: {', '.join(sorted(known))}"
        )
    if header.tokenizer_setting("tokens") is None:
        raise StepladderError(f"GGUF file {path} has no vocabulary (tokenizer.ggml.tokens); expected a full model")


def _damaged(path: Path, why: str) -> StepladderError:
    return StepladderError(f"GGUF file {path} is damaged or incomplete: {why}. Download it again")
