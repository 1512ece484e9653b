"""Load transformers models by name: a folder, a GGUF file, a hub name or a built-in name.

In: a name, a device, a dtype. Out: model and tokenizer, or an error that says what was found and what was expected.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from logging import getLogger
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging

from stepladder.core.errors import StepladderError
from stepladder.models import NAMED
from stepladder.models.adapters import base_of, is_adapter, merged
from stepladder.models.resolve import base_models, resolve_full_model, resolve_model
from stepladder.models.tiny import tiny_model, tiny_tokenizer

log = getLogger(__name__)

#: The end of a sentence or line before a capital letter.
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\s*\n\s*(?=[A-Z])")

#: Argument of every library call that loads a model: code from its files is never run. Without it, transformers asks.
NO_CODE: dict[str, Any] = {"trust_remote_code": False}


def load_model(
    model: str | Path, tokenizer: PreTrainedTokenizerBase | None, dtype: torch.dtype | None
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """A causal language model and its tokenizer by name (`resolve.py`). Without a dtype: that of its files."""
    if str(model) == "tiny":
        return tiny_model().to(dtype), tokenizer or tiny_tokenizer()  # type: ignore[arg-type]
    return load_pretrained(model, AutoModelForCausalLM, _expect_causal, tokenizer, dtype)


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without loading its weights."""
    if str(model) == "tiny":
        return tiny_tokenizer()
    with quiet_libraries():
        source = resolve_model(model)
        if isinstance(source, Path) and is_adapter(source) and not (source / "tokenizer_config.json").exists():
            source = resolve_full_model(source)
    with wrap_library_errors(lambda error: _not_loaded(model, source, error)):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(source), **NO_CODE)
    return tokenizer


def load_pretrained(
    model: str | Path,
    kind: Any,
    expect: Callable[[str | Path, Any], None],
    tokenizer: PreTrainedTokenizerBase | None,
    dtype: torch.dtype | None,
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """A model of `kind` (a transformers auto class); `expect` raises if its config is of another kind."""
    with quiet_libraries():  # resolving may unpack a GGUF file
        source = resolve_model(model)
    if isinstance(source, Path) and is_adapter(source):
        return _load_adapted(source, kind, tokenizer, dtype)
    name = str(source)
    loaded: nn.Module
    with wrap_library_errors(lambda error: _not_loaded(model, source, error)):
        expect(model, AutoConfig.from_pretrained(name, **NO_CODE))
        loaded, loading_info = kind.from_pretrained(
            name, dtype=dtype or "auto", output_loading_info=True, ignore_mismatched_sizes=True, **NO_CODE
        )
        _expect_all_weights(model, loading_info)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(name, **NO_CODE)
    return loaded, tokenizer


def _not_loaded(model: str | Path, source: str | Path, error: Exception) -> StepladderError:
    """The error for a model that cannot be loaded from its folder or from the hub."""
    where = "" if isinstance(source, Path) else f"there is no folder '{source}', and the hub download failed: "
    return StepladderError(
        f"model '{model}' could not be loaded: {where}{reason_of(error)}. "
        f"Give a folder with a transformers model, a GGUF file, a hub name, or one of: {', '.join(NAMED)}."
    )


def reason_of(error: Exception, max_characters: int = 300) -> str:
    r"""The first whole sentences of an error's message, on one line, without the last full stop.

    >>> reason_of(OSError("No such file: a.b\nGet it at 'http://c.d/e'. Or do not."), 45)
    "No such file: a.b. Get it at 'http://c.d/e'"
    """
    message = str(error).strip() or type(error).__name__
    if "trust_remote_code" in message:  # the library's advice is to run the code
        return "it needs Python code from its own files, which is never run. Use a model that transformers includes"
    first, *others = (" ".join(each.split()).rstrip(".,:") for each in _SENTENCE_END.split(message))
    kept = shorten(first, max_characters, placeholder=" ...")
    for sentence in others:
        if len(kept) + len(sentence) + 2 > max_characters:
            break
        kept += f". {sentence}"
    return kept


def _load_adapted(
    folder: Path, kind: Any, tokenizer: PreTrainedTokenizerBase | None, dtype: torch.dtype | None
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """The base model of an adapter, with the adapter merged. The adapter's own tokenizer, if any, takes precedence."""
    if kind is not AutoModelForCausalLM:
        raise StepladderError(f"{folder} is an adapter; expected a full model: merge it into its base model first")

    def not_merged(error: Exception) -> StepladderError:
        why = reason_of(error)
        if "size mismatch" in str(error):
            why = "its matrices have other sizes. Check base_model_name_or_path in its adapter_config.json"
        return StepladderError(f"the adapter {folder} could not be merged into '{base_of(folder)}': {why}")

    base, own_tokenizer = load_model(base_models(folder)[0], tokenizer, None)
    with wrap_library_errors(not_merged):
        if tokenizer is None and (folder / "tokenizer_config.json").is_file():
            own_tokenizer = AutoTokenizer.from_pretrained(str(folder), **NO_CODE)
        model = merged(base, folder)
    model.name_or_path = str(folder.absolute())  # an adapter trained on top of it names this adapter, not its base
    return model.to(dtype or model.dtype), own_tokenizer


def _expect_causal(model: str | Path, config: Any) -> None:
    """Reject models that are not causal: transformers would silently load an encoder's weights."""
    kinds = config.architectures or []
    if config.is_encoder_decoder or not all(kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() for kind in kinds):
        raise StepladderError(
            f"model '{model}' is a {', '.join(kinds) or config.model_type}; expected a causal language model, such as "
            "LlamaForCausalLM or Qwen3ForCausalLM"
        )


def _expect_all_weights(model: str | Path, loading_info: Any) -> None:
    """Reject weights that do not match the config: transformers would initialize missing ones at random."""
    problems = {
        "missing": loading_info["missing_keys"],
        "not in the model": loading_info["unexpected_keys"],
        "of another shape": loading_info["mismatched_keys"],
    }
    wrong = [
        f"{len(keys)} {problem} (such as {min(str(key[0] if isinstance(key, tuple) else key) for key in keys)})"
        for problem, keys in problems.items()
        if keys
    ]
    if wrong:
        raise StepladderError(
            f"the weights of model '{model}' do not fit its config.json: {'; '.join(wrong)}. Download the folder "
            "again, or use the config.json that belongs to these weights"
        )


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the libraries' progress bars, logs and warnings. What matters is checked explicitly."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def wrap_library_errors(wrap: Callable[[Exception], StepladderError]) -> Iterator[None]:
    """Load third-party files quietly. Libraries fail at them in many ways: `wrap` makes an error of ours from any."""
    try:
        with quiet_libraries():
            yield
    except StepladderError:
        raise
    except Exception as error:
        raise wrap(error) from error


def context_limit_of(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise StepladderError("the model's config has no context length: pass context_limit")
    return limit


def fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """A hash of the vocabulary: equal for tokenizers with the same ids."""
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return blake2b(repr(vocabulary).encode("utf-8", "replace"), digest_size=6).hexdigest()


def end_tokens(settings: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """All end-of-turn tokens, from the tokenizer and the model's generation config."""
    configured = settings.eos_token_id if settings is not None else None
    several = configured if isinstance(configured, list) else [configured]
    return frozenset(token for token in (*several, tokenizer.eos_token_id) if token is not None)
