"""The engine `auto`: the faster one for a model and a number of concurrent transcripts, as it was measured.

In: a model, a device and a batch size. Out: the engine `transformers` or `vllm`. `generation_speed.json` has tokens per
second of both on one GPU, by size of the model and number of transcripts; `benchmarks/generation_speed.py` writes it.
The nearest measurement decides. Without a GPU or without vLLM, and where vLLM was not measured, it is `transformers`.
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import torch

from stepladder.core.errors import StepladderError
from stepladder.engines.base import Engine, EngineOptions
from stepladder.models.devices import pick_device
from stepladder.models.loading import NO_CODE, reason_of, wrap_library_errors
from stepladder.models.resolve import resolve_full_model

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Tokens per second of each engine, for one model and number of transcripts; None: not measured."""

    parameters: float
    transcripts: int
    transformers: float | None
    vllm: float | None


@cache
def measurements() -> tuple[Measurement, ...]:
    """All measurements."""
    text = files("stepladder.engines").joinpath("generation_speed.json").read_text(encoding="utf-8")
    return tuple(Measurement(**row) for row in json.loads(text)["rows"])


def faster_engine(parameters: float, transcripts: int, measured: Sequence[Measurement]) -> str:
    """The faster engine in the nearest measurement: of the nearest size, and there of the nearest number.

    >>> small, large = Measurement(1e8, 1024, 30.0, 20.0), Measurement(1e9, 1024, 10.0, 15.0)
    >>> faster_engine(2e8, 512, (small, large)), faster_engine(8e9, 512, (small, large))
    ('transformers', 'vllm')
    """

    def distance(row: Measurement) -> tuple[float, float]:
        size = abs(math.log(max(parameters, 1) / row.parameters))
        return size, abs(math.log(max(transcripts, 1) / row.transcripts))

    nearest = min(measured, key=distance)
    return "vllm" if (nearest.vllm or 0) > (nearest.transformers or 0) else "transformers"


def choose_engine(options: EngineOptions) -> str:
    """The name of the engine for these options."""
    device = pick_device(options.device)
    # vLLM uses the first visible GPUs.
    if options.model is None or device.type != "cuda" or device.index or find_spec("vllm") is None:
        return "transformers"
    if (options.vllm or {}).get("tensor_parallel_size", 1) > 1:  # only vLLM does that
        return "vllm"
    parameters = count_parameters(options.model)
    name = faster_engine(parameters, options.max_batch, measurements())
    log.info("engine auto: %s for %.2g parameters and %d transcripts", name, parameters, options.max_batch)
    return name


def count_parameters(model: str) -> int:
    """The number of parameters of a model, from its configuration."""
    from transformers import AutoConfig, AutoModelForCausalLM

    make: Any = AutoModelForCausalLM.from_config
    with wrap_library_errors(lambda e: StepladderError(f"model '{model}' could not be loaded: {reason_of(e)}")):
        config = AutoConfig.from_pretrained(str(resolve_full_model(model)), **NO_CODE)
        with torch.device("meta"):
            empty = make(config, **NO_CODE)
    return sum(weights.numel() for weights in empty.parameters())


def build(options: EngineOptions) -> Engine:
    """The engine for the options."""
    if choose_engine(options) == "vllm":
        from stepladder.engines.vllm.engine import build as build_vllm

        return build_vllm(options)
    from stepladder.engines.transformers.engine import build as build_transformers

    return build_transformers(options)
