"""The engine that generates with a policy while it is being trained.

In: the policy in training. Out: an engine, and the context manager to generate in. There are three engines:

    the policy itself   if it is small, or trained in the precision of its weights
    a copy in bf16      if it is trained in bf16 and not small: no casts of fp32 weights and of the KV cache for every
                        token, and LoRA adapters are merged. In the precision of the training, also if the weights in
                        training are sharded over processes
    vLLM                if configured: with a copy of its own

A copy is synchronized with the policy's weights before every rollout, in memory. LoRA adapters are merged into the
weights that are sent: vLLM then generates without the extra kernels of an adapter, and it takes adapters from files
only. The weights are stochastically rounded, so that small updates are not lost. vLLM gets all weights the first time,
and then those that training changes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from stepladder.core.errors import StepladderError
from stepladder.engines.paged.fused_norms import fuse_norms
from stepladder.engines.transformers.engine import TransformersEngine
from stepladder.engines.transformers.in_process import InProcessEngine
from stepladder.engines.vllm.settings import VLLMConfig
from stepladder.models.loading import load_model
from stepladder.models.resolve import resolve_full_model
from stepladder.models.stochastic_rounding import stochastic_round
from stepladder.train.launch.sharding import whole, whole_parameters
from stepladder.train.loop.compute import Compute, Precision
from stepladder.train.loop.policy_weights import Policy, lora_layers


def make_rollout_engine(
    policy: Policy, compute: Compute, max_batch: int, *, vllm: VLLMConfig | None = None
) -> tuple[InProcessEngine, Precision]:
    """The engine, and the context manager to generate in; vLLM if it is given settings for it."""
    if vllm is not None:
        return _make_vllm(policy, compute, max_batch, vllm)
    if not compute.is_sharded and (not compute.bf16 or policy.is_small):
        engine = TransformersEngine(policy.model, policy.tokenizer, max_batch=max_batch)
        return engine, partial(without_autocast, policy.model)
    copy, _ = load_model(policy.source, policy.tokenizer, torch.bfloat16 if compute.bf16 else torch.float32)
    copy = copy.to(compute.device).eval().requires_grad_(False)
    if compute.device.type == "cuda":
        fuse_norms(copy)
    engine = TransformersEngine(copy, policy.tokenizer, max_batch=max_batch)

    @contextmanager
    def synchronized() -> Iterator[None]:
        copy_weights(copy, merged_weights(policy.model))
        _wait_for(compute.device)
        yield

    return engine, synchronized


def _make_vllm(
    policy: Policy, compute: Compute, max_batch: int, settings: VLLMConfig
) -> tuple[InProcessEngine, Precision]:
    """One vLLM in every process of the training, on its GPU."""
    if settings.tensor_parallel_size > 1:
        raise StepladderError(
            "rollouts have one vLLM in every process, on its own GPU: leave tensor_parallel_size at 1 and start more "
            "processes"
        )
    # Imported here because it may not be installed.
    from stepladder.engines.vllm.engine import VLLMEngine

    engine = VLLMEngine(
        resolve_full_model(policy.source),  # of an adapter its base model: the adapter is merged into the weights
        tokenizer=policy.tokenizer,
        max_batch=max_batch,
        max_model_len=settings.max_model_len,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        dtype="bf16",
        # vLLM joins the processes that torchrun or accelerate has started, instead of starting some.
        options={"distributed_executor_backend": "external_launcher"} if compute.processes.num_processes > 1 else None,
    )
    complete = False

    @contextmanager
    def synchronized() -> Iterator[None]:
        nonlocal complete
        weights = merged_weights(policy.model, trained_only=complete)
        engine.load_weights((name, stochastic_round(weight, torch.bfloat16, name)) for name, weight in weights)
        complete = True
        _wait_for(compute.device)
        yield

    return engine, synchronized


def _wait_for(device: torch.device) -> None:
    """Wait until the weights are copied, so that the copy and the rollout are timed apart."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def without_autocast(model: nn.Module) -> Iterator[None]:
    """Within, a model in training computes in the precision of its weights.

    Autocast casts every weight and every input for every token, which costs a small model more than it saves. The
    trainer has wrapped the model's forward pass in it, so the original one is put back.
    """
    wrapped = vars(model).get("forward")
    if wrapped is not None:
        model.forward = vars(model).get("_original_forward", wrapped)
    before = {layer: layer.cast_input_dtype_enabled for layer in lora_layers(model)}
    for layer in before:
        layer.cast_input_dtype_enabled = True  # which autocast does otherwise
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped
        for layer, enabled in before.items():
            layer.cast_input_dtype_enabled = enabled


def merged_weights(model: nn.Module, *, trained_only: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
    """Every weight by its name in the model's files, with LoRA adapters merged; or only those that are in training.

    If the weights are sharded, all processes must go through them, in step.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)}
    for name, weight in model.named_parameters():
        owner, adapted, kind = name.rpartition(".base_layer.")
        if adapted:
            layer: Any = layers[owner]
            with whole_parameters(*layer.parameters()):
                deltas = [layer.get_delta_weight(each) for each in layer.active_adapters] if kind == "weight" else []
                if deltas or weight.requires_grad or not trained_only:
                    yield _file_name(f"{owner}.{kind}"), whole(weight.detach() + sum(deltas))
        elif (weight.requires_grad or not trained_only) and not _is_lora(name, layers):
            with whole_parameters(weight):
                yield _file_name(name), whole(weight.detach())


def _is_lora(name: str, layers: Iterable[str]) -> bool:
    return any(name.startswith(f"{owner}.lora_") for owner in layers)


@torch.no_grad()
def copy_weights(model: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy weights into a model in place, so that its CUDA graphs stay valid."""
    own = dict(model.named_parameters())
    for name, weight in weights:
        if name not in own:
            raise StepladderError(f"the copy of the policy has no weight {name}")
        target = own.pop(name)
        target.copy_(stochastic_round(weight, target.dtype, name))
    if own:
        raise StepladderError(f"the policy lacks {len(own)} weights of its copy, such as {min(own)}")


def _file_name(name: str) -> str:
    return name.removeprefix("module.").removeprefix("base_model.model.")
