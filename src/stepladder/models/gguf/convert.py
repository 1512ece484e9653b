"""A GGUF file as an ordinary model folder: weights unpacked to bf16, configuration, tokenizer.

In: a file. Out: a folder that any tool reads. transformers unpacks the weights; what it does not take from the file
(scaled positions, the size of heads, biases) is put right before, and whether every weight found its place is checked.
"""

import math
from contextlib import redirect_stderr
from io import StringIO
from logging import getLogger
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from stepladder.core.errors import StepladderError
from stepladder.models.gguf.header import GGUF, read_gguf
from stepladder.models.gguf.tokenizer import end_ids, tokenizer_of

log = getLogger(__name__)

#: What files of Llama 3.1 and later have in place of settings: by how much each frequency of a position is divided.
_FREQUENCIES = "rope_freqs.weight"
#: The settings of Llama 3 that such a tensor is made from, besides the factor.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def unpack(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file into an empty folder."""
    head = read_gguf(path)
    tokenizer = tokenizer_of(head)
    try:
        model = _load(head)
    except StepladderError:
        raise
    except Exception as error:  # files of others, read by libraries that fail in many ways
        why = shorten(" ".join(str(error).split()), 200, placeholder=" ...") or type(error).__name__
        raise StepladderError(f"GGUF file {path} could not be unpacked: {why}") from error
    _tie_if_equal(model)
    model.generation_config = _generation(head)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _load(head: GGUF) -> Any:
    from transformers import GgufConfig

    place = {"pretrained_model_name_or_path": str(head.path.parent), "gguf_file": str(head.path)}
    config = AutoConfig.from_pretrained(**place)
    _repair(config, head)
    with redirect_stderr(StringIO()):  # a bar of its own, for the smallest part of the work
        kind: Any = AutoModelForCausalLM
        model, found = kind.from_pretrained(  # two, with the loading info
            **place,
            config=config,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
            output_loading_info=True,
        )
    _expect_all_taken(head, model, found)
    return model


def _repair(config: Any, head: GGUF) -> None:
    """Put right what transformers does not take from the file."""
    if (length := head.own("context_length")) is not None and hasattr(config, "max_position_embeddings"):
        config.max_position_embeddings = length
    if (size := head.own("attention.key_length")) is not None and hasattr(config, "head_dim"):
        config.head_dim = size
    if "blk.0.attn_q.bias" in head.tensors and hasattr(config, "attention_bias"):
        config.attention_bias = True
    kind = head.own("rope.scaling.type")
    if _FREQUENCIES in head.tensors:
        config.rope_parameters = {**config.rope_parameters, **_llama3_scaling(head, config)}
    elif kind in ("linear", "yarn") and set(config.rope_parameters) <= {"rope_theta", "rope_type"}:
        original = head.own("rope.scaling.original_context_length")
        config.rope_parameters = {
            **config.rope_parameters,
            "rope_type": kind,
            "factor": head.own("rope.scaling.factor") or 1.0,
            **({"original_max_position_embeddings": original} if kind == "yarn" and original else {}),
        }
    elif kind not in (None, "none") or any(name.startswith("rope_factors") for name in head.tensors):
        log.warning(
            "%s scales positions (%s) in a way that is not taken over: long texts may be read worse",
            head.path.name,
            kind or "by tensors of its own",
        )
    if hasattr(config, "_model_name_or_path"):
        del config._model_name_or_path  # the name of the model, in the place of a path


def _llama3_scaling(head: GGUF, config: Any) -> dict[str, Any]:
    """The settings that give the divisors of the file."""
    tensor = head.tensors[_FREQUENCIES]
    with head.path.open("rb") as file:
        file.seek(tensor.start)
        divisors = np.frombuffer(file.read(tensor.end - tensor.start), dtype="<f4")
    factor = round(float(divisors.max()), 4)
    expected = _llama3_divisors(config.rope_parameters["rope_theta"], config.head_dim, factor)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise StepladderError(
            f"GGUF file {head.path} scales positions ({_FREQUENCIES}) in another way than Llama 3, the only one known"
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama3_divisors(theta: float, size: int, factor: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """By how much Llama 3 divides each frequency: short waves by 1, long ones by the factor, others in between."""
    waves = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    low, high, original = _LLAMA3.values()
    smooth = np.clip((original / waves - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _expect_all_taken(head: GGUF, model: Any, found: Any) -> None:
    """Refuse a model with weights drawn at random, and weights that are left over: transformers may drop those."""
    what = type(model).__name__
    if missing := sorted(found["missing_keys"]):
        raise StepladderError(
            f"GGUF file {head.path} lacks {len(missing)} weights of a {what}, such as {missing[0]}: it is of another "
            "kind, or damaged"
        )
    apart = {_FREQUENCIES, *(name for name in head.tensors if name.startswith("rope_factors"))}
    if _tied(model):
        apart.add("output.weight")
    left = head.tensors.keys() - apart
    given = sum(math.prod(head.tensors[name].shape) for name in left)
    taken = sum(weights.numel() for weights in model.parameters())
    if given != taken and not head.own("nextn_predict_layers"):  # layers that guess ahead are left out on purpose
        biases = sorted({name.rpartition("blk.")[2].lstrip("0123456789.") for name in left if name.endswith(".bias")})
        hint = f"; it has {', '.join(biases)}" if biases else ""
        raise StepladderError(
            f"GGUF file {head.path} holds {given:,} numbers, and a {what} takes {taken:,}{hint}: it is of another kind"
        )


def _tied(model: Any) -> bool:
    output = model.get_output_embeddings()
    return output is not None and output.weight is model.get_input_embeddings().weight


def _tie_if_equal(model: Any) -> None:
    """Keep one matrix where the file has the same twice."""
    words, output = model.get_input_embeddings(), model.get_output_embeddings()
    if isinstance(output, nn.Linear) and not _tied(model) and torch.equal(words.weight, output.weight):
        output.weight = words.weight
        model.config.tie_word_embeddings = True
        model.tie_weights()


def _generation(head: GGUF) -> GenerationConfig:
    """What ends a text. How to draw from the model is for the caller to say, not for the file."""
    ends = end_ids(head)
    return GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=head.token("bos_token_id"),
        eos_token_id=ends[0] if len(ends) == 1 else ends or None,
        pad_token_id=head.token("padding_token_id"),
    )
