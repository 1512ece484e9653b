"""Read and validate the header of a GGUF file.

In: a file. Out: `GGUF`, its settings and tensors; or an error that says what is wrong with the file. The `gguf` package
parses the header; weights are mapped into memory, not read.
"""

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.models.loading import reason_of

#: Maximum number of values in a header. Those of large vocabularies have two million.
_MAX_VALUES = 2**23

#: The types of the settings used here.
_TYPES: dict[str, type] = {
    "general.architecture": str,
    "general.type": str,
    "split.count": int,
    "tokenizer.chat_template": str,
    **dict.fromkeys((f"tokenizer.ggml.{name}" for name in ("model", "pre")), str),
    **dict.fromkeys((f"tokenizer.ggml.{name}" for name in ("tokens", "token_type", "merges", "scores")), list),
    **dict.fromkeys((f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom")), int),
    **dict.fromkeys((f"tokenizer.ggml.{name}_token_id" for name in ("unknown", "padding")), int),
}

#: Settings of the architecture that are sizes of its tensors. Some architectures have a list, one size per layer.
_SIZES = (
    *("embedding_length", "feed_forward_length", "expert_feed_forward_length", "vocab_size", "expert_count"),
    *("expert_used_count", "rope.dimension_count"),
    *(f"attention.{name}" for name in ("head_count", "head_count_kv", "key_length", "value_length")),
)
#: Those that are real numbers.
_REAL = ("rope.freq_base", "rope.scaling.factor", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
#: More than any model reads.
_MAX_CONTEXT = 2**31

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
class GGUF:
    """The header of a GGUF file."""

    path: Path
    settings: Mapping[str, Any]
    #: `gguf.ReaderTensor` by name. Their shapes have the innermost dimension first.
    tensors: Mapping[str, Any]

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
    try:
        header = _read(path)
    except Exception as error:  # the library raises whatever numpy does
        raise StepladderError(
            f"GGUF file {path} is damaged or incomplete: {reason_of(error)}. Download it again"
        ) from error
    _expect_language_model(header)
    _expect_sizes(header)
    return header


def _read(path: Path) -> GGUF:
    import numpy as np
    from gguf import GGUFReader, GGUFValueType

    class Reader(GGUFReader):
        """Refuses what the library would read beyond the end of the file, or until memory runs out."""

        values = 0

        def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: str | None = None) -> Any:
            layout = np.dtype(dtype)
            end = offset + layout.itemsize * int(count)
            self.values += 1
            if self.values > _MAX_VALUES:
                raise ValueError(f"its header has more than {_MAX_VALUES:,} values")
            if end > self.data.nbytes:
                part = "weights end" if hasattr(self, "data_offset") else "header ends"
                raise EOFError(f"it has {self.data.nbytes:,} bytes, and its {part} at {end:,} or later")
            if (override_order or self.byte_order) == "S":
                layout = layout.newbyteorder("S")
            return np.frombuffer(self.data, layout, int(count), offset)  # slicing a memmap takes four times as long

    reader = Reader(path)
    # Lists of lists are part of the format, but no model has one.
    flat = {name: field for name, field in reader.fields.items() if field.types.count(GGUFValueType.ARRAY) < 2}
    settings = {name: field.contents() for name, field in flat.items()}
    for name, expected in _TYPES.items():
        if name in settings and type(settings[name]) is not expected:
            raise TypeError(f"{name} is {settings[name]!r:.50}, expected {expected.__name__}")
    if "general.architecture" not in settings:
        raise ValueError("general.architecture is missing")
    return GGUF(path, settings, {tensor.name: tensor for tensor in reader.tensors})


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
    if not start.startswith(b"GGUF"):
        pointer = ". It looks like a git-lfs pointer: download the file itself" if start[:8] == b"version " else ""
        raise StepladderError(f"{path} is not a GGUF file: it begins with {start[:4]!r}, not b'GGUF'{pointer}")


def _expect_sizes(header: GGUF) -> None:
    """Refuse numbers that the tensors do not bear out: a model of that size would be built in memory."""
    widest = max((int(side) for tensor in header.tensors.values() for side in tensor.shape), default=0)
    limits = {
        **dict.fromkeys(_SIZES, widest),
        "block_count": len(header.tensors),
        "context_length": _MAX_CONTEXT,
        "rope.scaling.original_context_length": _MAX_CONTEXT,
    }
    for name, limit in limits.items():
        found = header.architecture_setting(name)
        for value in found if isinstance(found, list) else [0 if found is None else found]:
            if type(value) is not int or not 0 <= value <= limit:
                raise _wrong(header, name, found, f"a number from 0 to {limit:,}")
    if not isinstance(kind := header.architecture_setting("rope.scaling.type") or "", str):
        raise _wrong(header, "rope.scaling.type", kind, "a name")
    for name in _REAL:
        value = header.architecture_setting(name)
        if value is not None and not (type(value) in (int, float) and math.isfinite(value)):
            raise _wrong(header, name, value, "a number")


def _wrong(header: GGUF, name: str, found: object, expected: str) -> StepladderError:
    return StepladderError(
        f"GGUF file {header.path}: {header.architecture}.{name} is {reprlib.repr(found)}, expected {expected}. "
        "The file is damaged: download it again"
    )


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
