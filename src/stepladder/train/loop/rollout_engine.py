"""Who plays a policy while it is being trained, and how that player keeps in step with it.

In: the policy in training. Out: an engine, and the context within which it plays. There are three players:

    the policy itself   where it is small, or trained in the precision of its weights
    a copy in bf16      where it is trained in bf16 and not small: to convert fp32 weights, and all that was kept of the
                        transcripts, for every token would take longer than to write it; and LoRA's matrices are merged
    vLLM                where it was asked for: a copy of its own

A copy takes over the policy's weights, with what LoRA has learnt, each time before it plays. They are rounded so that
it follows small changes too (models/rounding.py).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from stepladder.core.errors import StepladderError
from stepladder.engines.paged.fused_decode import prepare_for_decoding
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.models.loading import load_model
from stepladder.models.resolve import resolve_full_model
from stepladder.models.stochastic_rounding import stochastic_round
from stepladder.train.loop.policy import Policy, lora_layers
from stepladder.train.loop.training_loop import Compute, Precision

#: Parameters from which on a copy in bf16 is worth its memory.
_WORTH_A_COPY = 100e6


def make_rollout_engine(
    policy: Policy, place: Compute, max_batch: int, *, vllm_gpu_memory_utilization: float | None = None
) -> tuple[InProcessEngine, Precision]:
    """The engine that plays a policy, and the context to play in; vLLM's, where it is given a share of the memory."""
    if vllm_gpu_memory_utilization is not None:
        return _in_vllm(policy, place, max_batch, vllm_gpu_memory_utilization)
    if not place.bf16 or sum(weights.numel() for weights in policy.model.parameters()) < _WORTH_A_COPY:
        engine = TransformersEngine(policy.model, policy.tokenizer, max_batch=max_batch)
        return engine, partial(without_autocast, policy.model)
    copied, _ = load_model(policy.source, policy.tokenizer, torch.bfloat16)
    copied = copied.to(place.device).eval().requires_grad_(False)
    if place.device.type == "cuda":
        prepare_for_decoding(copied)
    engine = TransformersEngine(copied, policy.tokenizer, max_batch=max_batch)

    @contextmanager
    def playing() -> Iterator[None]:
        copy_weights(copied, merged_weights(policy.model))
        yield

    return engine, playing


def _in_vllm(policy: Policy, place: Compute, max_batch: int, memory: float) -> tuple[InProcessEngine, Precision]:
    if place.processes.num_processes > 1:
        raise StepladderError("with several processes the engine is transformers: vLLM's copy follows one trainer only")
    # Imported here because it may not be installed.
    from stepladder.engines.vllm import VLLMEngine

    # Of an adapter its model: the adapter is in the weights that it takes over.
    whole = resolve_full_model(policy.source)
    engine = VLLMEngine(whole, tokenizer=policy.tokenizer, max_batch=max_batch, gpu_memory_utilization=memory, dtype="bf16")

    @contextmanager
    def playing() -> Iterator[None]:
        weights = merged_weights(policy.model)
        engine.load_weights((name, stochastic_round(weight, torch.bfloat16, name)) for name, weight in weights)
        yield

    return engine, playing


@contextmanager
def without_autocast(model: nn.Module) -> Iterator[None]:
    """Within, a model in training computes in the precision of its weights.

    Autocast converts every weight and every input for every token; with few weights that takes longer than it saves. A
    trainer has put it into the model's own forward pass, which is gone around.
    """
    trained = vars(model).get("forward")
    if trained is not None:
        model.forward = vars(model).get("_original_forward", trained)
    converting = {layer: layer.cast_input_dtype_enabled for layer in lora_layers(model)}
    for layer in converting:
        layer.cast_input_dtype_enabled = True  # what autocast does else
    try:
        yield
    finally:
        if trained is not None:
            model.forward = trained
        for layer, before in converting.items():
            layer.cast_input_dtype_enabled = before


def merged_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight by its name in the model's files, with what LoRA has learnt added."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
    for name, weight in model.named_parameters():
        owner, adapted, kind = name.rpartition(".base_layer.")
        if adapted:
            layer: Any = layers[owner]
            learnt = [layer.get_delta_weight(each) for each in layer.active_adapters] if kind == "weight" else []
            yield _plain(f"{owner}.{kind}"), weight.detach() + sum(learnt)
        elif not any(name.startswith(f"{owner}.lora_") for owner in layers):
            yield _plain(name), weight.detach()


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Put weights into a model, where they lie: what was recorded of its passes stays valid."""
    own = dict(model.named_parameters())
    for name, weight in weights:
        if name not in own:
            raise StepladderError(f"the policy in training has a weight that its copy has not: {name}")
        mine = own.pop(name)
        mine.copy_(stochastic_round(weight, mine.dtype, name))
    if own:
        raise StepladderError(f"the policy in training has no weights for {len(own)} of its copy, such as {min(own)}")


def _plain(name: str) -> str:
    return name.removeprefix("module.").removeprefix("base_model.model.")
