"""Convert a GGUF file into a transformers model folder: weights dequantized to bf16, config, tokenizer.

In: a file. Out: a folder in the standard format. transformers dequantizes the weights; what it does not read from the
file (RoPE scaling, head size, biases) is set here, and the use of every weight is checked.
"""

import math
from contextlib import redirect_stderr
from io import StringIO
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from stepladder.core.errors import StepladderError
from stepladder.models.gguf.header import GGUF, read_gguf
from stepladder.models.gguf.tokenizer import end_ids, tokenizer_of
from stepladder.models.loading import NO_CODE, reason_of, wrap_library_errors

log = getLogger(__name__)

#: The tensor with RoPE frequency divisors, which files of Llama 3.1 and later have instead of scaling settings.
_FREQUENCIES = "rope_freqs.weight"
#: Llama 3's scaling settings behind this tensor, without the factor.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def unpack(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file into an empty folder."""
    header = read_gguf(path)
    problem = f"GGUF file {path} could not be unpacked"
    with wrap_library_errors(lambda error: StepladderError(f"{problem}: {reason_of(error)}")):
        tokenizer = tokenizer_of(header)
        model = _load(header)
        _tie_if_equal(model)
        model.generation_config = _generation(header)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _load(header: GGUF) -> Any:
    from transformers import GgufConfig

    source = {"pretrained_model_name_or_path": str(header.path.parent), "gguf_file": str(header.path), **NO_CODE}
    config = AutoConfig.from_pretrained(**source)
    _fix_config(config, header)
    with redirect_stderr(StringIO()):  # suppress its progress bar
        kind: Any = AutoModelForCausalLM
        model, loading_info = kind.from_pretrained(
            **source,
            config=config,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    _expect_all_weights(header, model, loading_info)
    return model


def _fix_config(config: Any, header: GGUF) -> None:
    """Set what transformers does not read from the file."""
    for setting, name in (("context_length", "max_position_embeddings"), ("attention.key_length", "head_dim")):
        if (value := header.architecture_setting(setting)) is not None and hasattr(config, name):
            setattr(config, name, value)
    if "blk.0.attn_q.bias" in header.tensors and hasattr(config, "attention_bias"):
        config.attention_bias = True
    kind = header.architecture_setting("rope.scaling.type")
    if _FREQUENCIES in header.tensors:
        config.rope_parameters = {**config.rope_parameters, **_llama3_scaling(header, config)}
    elif kind in ("linear", "yarn") and set(config.rope_parameters) <= {"rope_theta", "rope_type"}:
        original = header.architecture_setting("rope.scaling.original_context_length")
        config.rope_parameters = {
            **config.rope_parameters,
            "rope_type": kind,
            "factor": header.architecture_setting("rope.scaling.factor") or 1.0,
            **({"original_max_position_embeddings": original} if kind == "yarn" and original else {}),
        }
    elif kind not in (None, "none") or any(name.startswith("rope_factors") for name in header.tensors):
        log.warning(
            "%s uses RoPE scaling (%s) that is not supported and is ignored: quality may drop on long contexts",
            header.path.name,
            kind or "from tensors",
        )
    if hasattr(config, "_model_name_or_path"):
        del config._model_name_or_path  # it contains the model's name instead of a path


def _llama3_scaling(header: GGUF, config: Any) -> dict[str, Any]:
    """The scaling settings that reproduce the file's divisors."""
    divisors = header.tensors[_FREQUENCIES].data
    factor = round(float(divisors.max()), 4)
    expected = _llama3_divisors(config.rope_parameters["rope_theta"], config.head_dim, factor)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise StepladderError(
            f"GGUF file {header.path} uses RoPE scaling ({_FREQUENCIES}) other than Llama 3's, the only one supported"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama3_divisors(theta: float, size: int, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Llama 3's divisor per frequency: 1 for short wavelengths, the factor for long ones, interpolated in between."""
    waves = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    low, high, original = _LLAMA3.values()
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _expect_all_weights(header: GGUF, model: Any, loading_info: Any) -> None:
    """Reject randomly initialized weights and unused weights, which transformers may drop silently."""
    what = type(model).__name__
    if missing := sorted(loading_info["missing_keys"]):
        raise StepladderError(
            f"GGUF file {header.path} lacks {len(missing)} weights of a {what}, such as {missing[0]}: it is of another "
            "kind, or damaged"
        )
    excluded = {_FREQUENCIES, *(name for name in header.tensors if name.startswith("rope_factors"))}
    if _tied(model):
        excluded.add("output.weight")
    names = header.tensors.keys() - excluded
    found = sum(header.tensors[name].n_elements for name in names)
    used = sum(weights.numel() for weights in model.parameters())
    if found != used and not header.architecture_setting("nextn_predict_layers"):  # MTP layers are dropped on purpose
        biases = sorted({name.rpartition("blk.")[2].lstrip("0123456789.") for name in names if name.endswith(".bias")})
        hint = f"; it has {', '.join(biases)}" if biases else ""
        raise StepladderError(
            f"GGUF file {header.path} has {found:,} parameters, and a {what} has {used:,}{hint}: it is of another kind"
        )


def _tied(model: Any) -> bool:
    output = model.get_output_embeddings()
    return output is not None and output.weight is model.get_input_embeddings().weight


def _tie_if_equal(model: Any) -> None:
    """Tie input and output embeddings if the file has the same matrix twice."""
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(output, nn.Linear) and not _tied(model) and torch.equal(embeddings.weight, output.weight):
        output.weight = embeddings.weight
        model.config.tie_word_embeddings = True
        model.tie_weights()


def _generation(header: GGUF) -> GenerationConfig:
    """The special tokens. Sampling parameters are the caller's choice."""
    ends = end_ids(header)
    return GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=header.tokenizer_setting("bos_token_id"),
        eos_token_id=ends[0] if len(ends) == 1 else ends or None,
        pad_token_id=header.tokenizer_setting("padding_token_id"),
    )
