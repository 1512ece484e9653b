"""Models of transformers by name: a folder, a hub name or a built-in one; and what an engine must know of them.

In: a name, a device, a dtype. Out: model and tokenizer, or an error that says what was found and what was expected.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from stepladder.engines.tiny import tiny_model, tiny_tokenizer
from stepladder.errors import StepladderError, unknown_name

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

#: Models that come with the package.
BUILT_IN = ("tiny",)


def load_model(
    model: str | Path, tokenizer: PreTrainedTokenizerBase | None, dtype: torch.dtype
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """A model with its tokenizer, by built-in name, folder or hub name."""
    if str(model) == "tiny":
        return tiny_model().to(dtype), tokenizer or tiny_tokenizer()  # type: ignore[arg-type]
    folder = Path(model).expanduser()
    looks_like_path = isinstance(model, Path) or str(model).startswith((".", "/", "~")) or str(model).count("/") > 1
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise StepladderError(f"{folder} is not a model folder: it has no config.json")
    elif looks_like_path or folder.exists():
        found = "is a file" if folder.exists() else "does not exist"
        raise StepladderError(f"model path {folder} {found}; expected a folder with config.json and weights")
    try:
        loaded = AutoModelForCausalLM.from_pretrained(str(folder if folder.is_dir() else model), dtype=dtype)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(str(folder if folder.is_dir() else model))
    except (OSError, ValueError, KeyError) as error:
        raise StepladderError(
            f"model '{model}' could not be loaded: {str(error).splitlines()[0]} "
            f"Give a folder with a transformers model, a hub name, or one of: {', '.join(BUILT_IN)}."
        ) from error
    return loaded, tokenizer


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise StepladderError(f"unknown device '{name}'; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StepladderError(
            f"device '{name}' was asked for, but this torch sees no CUDA device (`stepladder doctor`)"
        )
    return device


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    if name not in ("auto", *DTYPES):
        raise unknown_name("dtype", name, ("auto", *DTYPES))
    return DTYPES.get(name, torch.bfloat16 if device.type == "cuda" else torch.float32)


def context_limit_of(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise StepladderError("the model does not say how long its context may be: pass context_limit")
    return limit


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Equal for tokenizers whose ids mean the same."""
    words = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return blake2b(repr(words).encode("utf-8", "replace"), digest_size=6).hexdigest()


def end_tokens(model: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends a turn, by the tokenizer and by the model's generation settings."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    several = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in (*several, tokenizer.eos_token_id) if token is not None)
