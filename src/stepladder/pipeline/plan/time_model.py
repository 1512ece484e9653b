"""Time of a stage: reading, decoding, scoring, training, searching, starting, writing checkpoints.

In: the work of a stage, the shape of the model, the rates of the device. Out: `StageTime`: seconds by part, with a
range. Decoding n tokens in b rows takes

    n / b x (layers x layer_seconds + weights / bandwidth)       what a step costs, whatever the number of rows
  + n x row_seconds + n x context x KV bytes / bandwidth         what a row costs
  + (n + read) x 2 x parameters / FLOP/s                         the arithmetic

and training 6 x parameters FLOPs per token, 4 with LoRA (frozen weights have no gradient), and 2 more with gradient
checkpointing.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from stepladder.pipeline.plan.cost_constants import interpolate
from stepladder.pipeline.plan.memory_model import Setup
from stepladder.pipeline.plan.model_shape import ModelShape
from stepladder.pipeline.plan.stage_work import Generation, StageWork, Training

#: The range of a rate: measured on this device, or scaled from another one.
_MEASURED, _SCALED = (0.85, 1.25), (0.65, 1.6)
#: Seconds of a stage that does nothing.
_EMPTY = 0.3
#: The share of the ideal speed-up that each further process keeps.
_EFFICIENCY = 0.9
#: Tokens with padding, relative to those without.
_PADDED = 1.12
#: To make an example of a reward model.
_EXAMPLE_SECONDS = 3e-3
#: Passes of all weights start fewer kernels than passes with adapters.
_FEWER_KERNELS = 0.7
#: Searches of a corpus of n passages take `search_seconds` + n x this.
_PASSAGE_SECONDS = 2.3e-9


@dataclass(slots=True)
class StageTime:
    """Seconds of a stage."""

    parts: dict[str, float] = field(default_factory=dict)
    low: float = 0.0
    high: float = 0.0

    @property
    def expected(self) -> float:
        """The estimate."""
        return sum(self.parts.values())

    def add(self, name: str, seconds: float, low: float = 1.0, high: float = 1.0) -> None:
        """Add seconds to a part."""
        self.parts[name] = self.parts.get(name, 0.0) + seconds
        self.low += seconds * low
        self.high += seconds * high


def stage_time(
    shape: ModelShape, work: StageWork, setup: Setup, shared: Any, settings: Any, *, passages: int, engines: int
) -> StageTime:
    """The time of a stage. `engines`: engines that share the work of stages that only generate."""
    found, rates = StageTime(), setup.rates
    low, high = _MEASURED if rates.scaled_from is None else _SCALED
    found.add("start", _EMPTY)
    trains = work.training is not None
    name = getattr(settings, "engine", "transformers") if trains else shared.engine
    if work.generations:
        found.add("start", rates.start_seconds.get(name, rates.start_seconds["transformers"]), 0.5, 1.5)
    if work.generations or trains:
        size = 2 * shape.parameters
        found.add("files", size / rates.disk_bytes_per_second, 0.3, 1.5)
        if trains:  # the trained weights, with adapters merged
            found.add("files", size / rates.write_bytes_per_second, 0.2, 1.5)
    for each in work.generations:
        # Trainers generate with their own engine, and episodes for a reward model with the recipe's.
        used, workers = (name, setup.processes) if each.by == "trainer" else (shared.engine, 1 if trains else engines)
        seconds = generation_seconds(shape, each, setup, used, shared.batch_size, workers)
        found.add(each.what, seconds, low * each.low, high * each.high)
        found.add("start", each.starts * rates.start_seconds.get(used, rates.start_seconds["transformers"]), 0.5, 1.5)
        found.add("start", each.resets * rates.warm_seconds, 0.5, 1.5)
        found.add("requests", each.requests * rates.request_seconds, 0.5, 1.5)
        searching = each.searches * (rates.search_seconds + passages * _PASSAGE_SECONDS)
        found.add("search", searching, 0.3, 2.0)
    if work.scored:
        flops = interpolate(rates.engine("transformers").flops, shape.hidden)
        seconds = work.scored * 2 * shape.computed_parameters / flops / _speedup(setup.processes if trains else engines)
        found.add("scoring", seconds, 0.7 * low, 1.3 * high)
        found.add("start", rates.warm_seconds + 2 * shape.parameters / rates.disk_bytes_per_second, 0.5, 1.5)
    if work.training is not None:
        seconds = training_seconds(shape, work.training, setup, settings)
        found.add("training", seconds, low * work.training.low, high * work.training.high)
        written = work.training.saves * _checkpoint_bytes(shape, settings) / (2 * rates.write_bytes_per_second)
        found.add("checkpoints", written, 0.2, 2.0)
        found.add("examples", work.training.made * _EXAMPLE_SECONDS, 0.5, 3.0)
    return found


def generation_seconds(
    shape: ModelShape, work: Generation, setup: Setup, engine: str, batch_size: int, engines: int = 1
) -> float:
    """The time to write `work.written` tokens. `batch_size`: the most rows of an engine."""
    rates, bandwidth = setup.rates.engine(engine), setup.rates.bandwidth
    rows = max(min(work.at_once / engines, batch_size), 1.0)
    flops = interpolate(rates.flops, shape.hidden)
    decode = flops if rates.decode_flops is None else interpolate(rates.decode_flops, shape.hidden)
    parameters = shape.computed_parameters
    step = rates.step_seconds + shape.layers * rates.layer_seconds + (2 if setup.bf16 else 4) * parameters / bandwidth
    host = work.written * rates.row_seconds
    arithmetic = 2 * parameters * (work.written / decode + work.read / flops)
    caches = work.written * work.context * shape.kv_bytes(setup.bf16) / bandwidth
    both = max(host, arithmetic) if rates.overlap else host + arithmetic
    steps = (work.tail * work.written / rows if work.steps is None else work.steps) / engines
    return steps * step + (both + caches) / _speedup(engines)


def training_seconds(shape: ModelShape, work: Training, setup: Setup, settings: Any) -> float:
    """The time of all forward and backward passes and updates."""
    flops = interpolate(setup.rates.training, shape.hidden)
    parameters = shape.computed_parameters
    per_token = (6 if settings.lora is None else 4) + (2 if getattr(settings, "gradient_checkpointing", False) else 0)
    attention = 4 * shape.layers * shape.heads * shape.head_size * work.example / 2
    tokens = _PADDED * work.tokens if work.padded is None else work.padded
    total = tokens * (per_token + 2 * work.extra_forward) * (parameters + attention / 2)
    trained = shape.parameters if settings.lora is None else shape.lora_parameters(settings.lora.r)
    # The optimizer reads and writes weights, gradients and moments.
    update = setup.rates.update_seconds + trained * 28 / setup.rates.bandwidth / setup.shards
    # A pass with few tokens takes as long as its kernels take to start.
    passes = work.updates * settings.gradient_accumulation_steps if work.passes is None else work.passes
    started = passes * shape.layers * setup.rates.pass_layer_seconds
    started *= _FEWER_KERNELS if settings.lora is None else 1.0
    computed = total / flops / _speedup(setup.processes)
    # The GPU computes while the next kernels are started, but not all the time.
    return math.hypot(computed, started) + work.updates * update


def _checkpoint_bytes(shape: ModelShape, settings: Any) -> float:
    trained = shape.parameters if settings.lora is None else shape.lora_parameters(settings.lora.r)
    return 12.0 * trained


def _speedup(processes: int) -> float:
    return 1.0 if processes <= 1 else 1 + (processes - 1) * _EFFICIENCY
