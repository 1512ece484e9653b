"""Which settings would make a stage fit: tried one after the other, alone and together.

In: a stage that does not fit, and a function that says how much memory is missing with other settings. Out: `Advice`,
as overrides of the recipe and a sentence each.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from stepladder.engines.vllm.settings import VLLMConfig
from stepladder.pipeline.plan.gpu_cluster import Cluster
from stepladder.pipeline.plan.transcript_profile import TranscriptProfile
from stepladder.pipeline.recipe import Stage
from stepladder.train.loop.config import LoraConfig

#: (settings, shared, cluster, strategy) -> bytes that are missing; 0 if the stage fits.
Shortage = Callable[[Any, Any, Cluster, str], float]
#: Numbers of GPUs to try.
_COUNTS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Advice:
    """One way to make a stage fit."""

    #: Options to add to the command.
    options: str
    #: What it means.
    about: str


@dataclass(frozen=True, slots=True)
class _Change:
    options: str
    about: str
    settings: Any
    shared: Any


def advise(
    stage: Stage, shared: Any, cluster: Cluster, strategy: str, profile: TranscriptProfile, missing: Shortage
) -> list[Advice]:
    """Ways to make a stage fit: each change alone, else several together; and sharding over more GPUs."""
    found: list[Advice] = []
    for name in _NAMES:
        for change in _named(name, _changes(stage, stage.settings, shared, profile)):
            if missing(change.settings, change.shared, cluster, strategy) <= 0:
                found.append(Advice(change.options, change.about))
                break
    if not found and (both := _together(stage, shared, cluster, strategy, profile, missing)) is not None:
        found.append(both)
    if cluster.is_cpu:
        return found
    if strategy != "fsdp" and cluster.count > 1 and missing(stage.settings, shared, cluster, "fsdp") <= 0:
        found.append(Advice("--strategy fsdp", "shard weights, gradients and optimizer over the GPUs"))
        return found
    if not found and cluster.count > 1 and missing(stage.settings, shared, cluster, "none") <= 0:
        found.append(Advice("--strategy none", "train in one process, on one GPU"))
    for count in _COUNTS:
        if count > cluster.count and missing(stage.settings, shared, replace(cluster, count=count), "fsdp") <= 0:
            about = f"FSDP over {count} GPUs" if "lora" in type(stage.settings).model_fields else f"{count} GPUs"
            found.append(Advice(f"--gpus {count}x{cluster.device}", about))
            break
    return found


def _named(name: str, changes: Iterator[_Change]) -> list[_Change]:
    return [change for change in changes if name in change.options.partition("=")[0]]


def _together(
    stage: Stage, shared: Any, cluster: Cluster, strategy: str, profile: TranscriptProfile, missing: Shortage
) -> Advice | None:
    """Several changes, the least harmful first: of each setting the value that saves most."""
    settings, chosen = stage.settings, list[_Change]()
    left = missing(settings, shared, cluster, strategy)
    for name in _NAMES:
        tried = _named(name, _changes(stage, settings, shared, profile))
        costs = [missing(each.settings, each.shared, cluster, strategy) for each in tried]
        if not tried or min(costs) >= left:
            continue
        left, best = min(costs), tried[costs.index(min(costs))]
        settings, shared = best.settings, best.shared
        if name == "engine":  # settings of vLLM have no effect any more, and would be an error
            chosen = [each for each in chosen if "vllm" not in each.options]
        chosen.append(best)
        if left <= 0:
            return Advice(" ".join(each.options for each in chosen), "; ".join(each.about for each in chosen))
    return None


#: The order in which changes are combined: the least harmful first.
_NAMES = (
    *("max_model_len", "gradient_accumulation_steps", "gradient_checkpointing", "gpu_memory_utilization"),
    *("gpus_per_worker", "lora", "batch_size", "engine"),
)


def _changes(stage: Stage, settings: Any, shared: Any, profile: TranscriptProfile) -> Iterator[_Change]:
    """Single changes to the settings of a stage or of the recipe."""
    key = f"stages.{stage.name}"

    def of_stage(name: str, value: Any, text: str, about: str) -> _Change:
        return _Change(f"--set {key}.{name}={text}", about, settings.model_copy(update={name: value}), shared)

    def of_vllm(name: str, value: Any, about: str) -> _Change:
        changed = shared.model_copy(update={"vllm": shared.vllm.model_copy(update={name: value})})
        return _Change(f"--set vllm.{name}={value:g}", about, settings, changed)

    fields = type(settings).model_fields
    if "gradient_accumulation_steps" in fields:
        most = (
            settings.batch_size // getattr(settings, "num_generations", 1)
            if stage.kind == "grpo"
            else settings.batch_size
        )
        for steps in (each for each in range(1, most + 1) if most % each == 0):
            if steps != settings.gradient_accumulation_steps:
                about = f"{steps} microbatch{'es' if steps > 1 else ''} per update"
                yield of_stage("gradient_accumulation_steps", steps, str(steps), about)
    if "gradient_checkpointing" in fields and not settings.gradient_checkpointing:
        yield of_stage("gradient_checkpointing", True, "true", "recompute activations in the backward pass")
    if "lora" in fields and settings.lora is None:
        yield of_stage("lora", LoraConfig(), "{}", "train LoRA adapters instead of all weights")
    if getattr(settings, "engine", "") == "vllm":
        for percent in range(10, 90, 5):
            share = percent / 100
            if share != settings.vllm_gpu_memory_utilization:
                name = "vllm_gpu_memory_utilization"
                yield of_stage(name, share, f"{share:g}", f"vLLM gets {percent}% of the GPU")
        yield of_stage("engine", "transformers", "transformers", "generate with the transformers engine")
    limit = -(-max(int(profile.longest * 1.5), 2048) // 1024) * 1024
    rows = f"vLLM holds rows of {limit:,} tokens instead of the whole context window"
    if "vllm_max_model_length" in fields and settings.engine == "vllm":
        yield of_stage("vllm_max_model_length", limit, str(limit), rows)
    if "lora" not in fields and getattr(shared, "vllm", None) is not None:
        yield of_vllm("max_model_len", limit, rows)
        for percent in range(80, 20, -10):
            yield of_vllm("gpu_memory_utilization", percent / 100, f"vLLM gets {percent}% of the GPU")
    if shared.ray is not None and not shared.ray.gpus_per_worker:
        changed = shared.model_copy(update={"ray": shared.ray.model_copy(update={"gpus_per_worker": 1})})
        yield _Change("--set ray.gpus_per_worker=1", "each worker gets a GPU", settings, changed)
    if "lora" not in fields and shared.batch_size > 64:
        yield _Change(
            "--set batch_size=64", "64 transcripts at a time", settings, shared.model_copy(update={"batch_size": 64})
        )
    if "lora" not in fields and shared.engine == "vllm":
        # Settings of vLLM would be an error with another engine.
        unset = " --set vllm={}" if shared.vllm != VLLMConfig() else ""
        changed = shared.model_copy(update={"engine": "transformers", "vllm": VLLMConfig()})
        about = "generate with the transformers engine"
        yield _Change(f"--set engine=transformers{unset}", about, settings, changed)
