"""Settings of vLLM, under vLLM's own names, and whether a model fits them.

In: settings of a recipe or a command, and the model's configuration. Out: the same settings, or an error that says
which one to change, before vLLM is started.
"""

from typing import Annotated, Any

from pydantic import Field, PositiveInt

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError

#: The engines that may be vLLM, by name.
VLLM_ENGINES = ("vllm", "auto")


class VLLMConfig(Config):
    """How vLLM loads a model."""

    #: Tokens of the longest transcript; null is the context length of the model. Less context takes less memory.
    max_model_len: Annotated[int, Field(ge=2)] | None = None
    #: GPUs that share the layers of one model.
    tensor_parallel_size: PositiveInt = 1
    #: The share of the GPU's memory for weights and KV cache.
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85


def check_fits(model: str, config: Any, settings: VLLMConfig, context: int, gpus: int) -> None:
    """Raise if a model cannot be loaded with these settings.

    `config`: the model's text configuration; `context`: its context length; `gpus`: how many GPUs there are.
    """
    length, parallel = settings.max_model_len, settings.tensor_parallel_size
    if length is not None and length > context:
        raise StepladderError(
            f"max_model_len {length:,} is more than the context of '{model}', {context:,} tokens: set at most that"
        )
    if parallel == 1:
        return
    heads = int(getattr(config, "num_attention_heads", 0) or 0)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    if heads and heads % parallel:
        fitting = [str(size) for size in range(2, heads + 1) if heads % size == 0]
        raise StepladderError(
            f"tensor_parallel_size {parallel} does not divide the {heads} attention heads of '{model}'"
            + (f": set one of {', '.join(fitting)}, or 1" if fitting else ": set 1")
        )
    if groups and groups % parallel and parallel % groups:
        raise StepladderError(
            f"tensor_parallel_size {parallel} cannot share the {groups} key-value heads of '{model}': it must divide "
            "them, or be a multiple of them"
        )
    if parallel > gpus:
        raise StepladderError(
            f"tensor_parallel_size {parallel} needs {parallel} GPUs, and {gpus or 'none'} can be seen "
            "(CUDA_VISIBLE_DEVICES): set it to a smaller number"
        )


def loading_advice(problem: str) -> str:
    """What to change when vLLM cannot load a model, by its error message."""
    text = problem.lower()
    if "kv cache" in text or "max seq len" in text or "max_model_len" in text:
        return ". Lower max_model_len, raise gpu_memory_utilization or tensor_parallel_size"
    if "free memory" in text or "out of memory" in text or "gpu_memory_utilization" in text:
        return ". Other programs use this GPU's memory: lower gpu_memory_utilization, or set a higher share elsewhere"
    return ""
