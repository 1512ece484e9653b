"""Weights that are sharded over processes: FSDP2 and DeepSpeed ZeRO-3, configured by `accelerate launch`.

In: a launch and the settings of a trainer. Out: an error before any work if they do not fit together; and whole weights
of a sharded model, for the engine that generates with it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from stepladder.core.errors import StepladderError
from stepladder.core.io import launch
from stepladder.train.loop.config import TrainingConfig

#: Optimizers whose state is one tensor of the shape of the weight, so that it is sharded with it.
_SHARDABLE = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")

#: Environment variables of accelerate, and what they switch on.
_UNSUPPORTED = {
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config (tensor, context or pipeline parallelism)",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
}


def check_launch(config: TrainingConfig) -> None:
    """Raise if the processes cannot share the batches, or shard the weights in a way that training cannot use."""
    config.check_processes(launch.world_size())
    _check_accelerate()
    if launch.sharding() is None:
        return
    if launch.sharding() == "FSDP":
        _check_fsdp(config)
    else:
        _check_deepspeed()
    if config.optim not in _SHARDABLE:
        raise StepladderError(
            f"optim: {config.optim} cannot be sharded over processes by {launch.sharding()}: set optim to one of "
            f"{', '.join(_SHARDABLE)}, or launch with recipes/launch/ddp.yaml"
        )


def _check_deepspeed() -> None:
    if find_spec("deepspeed") is None:
        raise StepladderError(
            "DeepSpeed is not installed: pip install deepspeed, or launch with recipes/launch/fsdp2.yaml, which shards "
            "weights, gradients and optimizer states too"
        )
    if os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3" and not _is_on(
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL"
    ):
        raise StepladderError(
            "zero3_save_16bit_model is not true, so that checkpoints have no whole model and no policy can be written: "
            "set it to true in the accelerate config, as in recipes/launch/deepspeed-zero3.yaml"
        )


def load_whole_models() -> None:
    """Let transformers load models whole, each process by itself, also under ZeRO-3.

    It would load and shard every model in all processes together, also those that one process needs alone, such as the
    policy that the main process writes. DeepSpeed shards the model in training when it is prepared.
    """
    unset_hf_deepspeed_config()  # type: ignore[no-untyped-call]


def _check_accelerate() -> None:
    """What an accelerate config may set, and training does not support."""
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision != "no":
        raise StepladderError(
            f"mixed_precision is {precision} in the accelerate config: set it to 'no' there, and precision (fp32 or "
            "bf16) in the recipe"
        )
    for name, what in _UNSUPPORTED.items():
        if _is_on(name):
            raise StepladderError(
                f"the launch uses {what}, which Stepladder does not support: use one of the files in recipes/launch"
            )


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in ("true", "1")


def _check_fsdp(config: TrainingConfig) -> None:
    version, stored = os.environ.get("FSDP_VERSION", "1"), os.environ.get("FSDP_STATE_DICT_TYPE", "")
    if version != "2":
        raise StepladderError(
            f"the launch uses FSDP {version}; Stepladder needs FSDP2: set fsdp_version: 2 in the accelerate config, "
            "as in recipes/launch/fsdp2.yaml"
        )
    if stored != "FULL_STATE_DICT":
        raise StepladderError(
            f"fsdp_state_dict_type is {stored or 'not set'}, which stores a checkpoint in as many parts as processes: "
            "set it to FULL_STATE_DICT in the accelerate config, as in recipes/launch/fsdp2.yaml, so that the policy "
            "can be written and training can resume with another number of processes"
        )
    if _is_on("FSDP_CPU_RAM_EFFICIENT_LOADING"):
        raise StepladderError(
            "fsdp_cpu_ram_efficient_loading leaves the weights of all processes but one empty, also those of the copy "
            "that generates: set it to false in the accelerate config, as in recipes/launch/fsdp2.yaml"
        )
    if config.gradient_checkpointing and _is_on("FSDP_ACTIVATION_CHECKPOINTING"):
        raise StepladderError(
            "gradient_checkpointing and fsdp_activation_checkpointing of the accelerate config do the same: leave one "
            "out"
        )


def check_shardable(model: nn.Module, source: object) -> None:
    """Raise if FSDP could not find the layers of a model, which it shards one by one."""
    if launch.sharding() != "FSDP":
        return
    if os.environ.get("FSDP_AUTO_WRAP_POLICY") != "TRANSFORMER_BASED_WRAP":
        return
    named = [each for each in os.environ.get("FSDP_TRANSFORMER_CLS_TO_WRAP", "").split(",") if each]
    wanted = named or list(getattr(model, "_no_split_modules", None) or ())
    found = {type(module).__name__ for module in model.modules()}
    if not wanted or not found.intersection(wanted):
        what = f"has no layer {', '.join(wanted)}" if wanted else "does not name its layers"
        raise StepladderError(
            f"FSDP cannot shard model '{source}', which {what}: set fsdp_transformer_layer_cls_to_wrap in the "
            "accelerate config to the class of its layers, or launch with recipes/launch/ddp.yaml"
        )


def check_resumable(checkpoint: Path) -> None:
    """Raise if a checkpoint was written by a launch that sharded the weights in another way."""
    signs = {"pytorch_model_fsdp.bin": "FSDP", "optimizer.bin": "FSDP", "latest": "DeepSpeed"}
    written = next((kind for file, kind in signs.items() if (checkpoint / file).exists()), None)
    if written != (now := launch.sharding()):
        names = {"FSDP": "with recipes/launch/fsdp2.yaml", "DeepSpeed": "with recipes/launch/deepspeed-zero3.yaml"}
        how = names.get(written or "", "without FSDP and DeepSpeed")
        raise StepladderError(
            f"{checkpoint} was written {f'with {written}' if written else 'without sharding'}, and this launch is "
            f"{f'with {now}' if now else 'without sharding'}; the states of the optimizer are stored differently. "
            f"Launch {how}, with any number of processes, or delete {checkpoint.parent} to train again"
        )
    shards = len(list(checkpoint.glob("rng_state_*.pth"))) or 1
    if written == "DeepSpeed" and shards != launch.world_size():
        raise StepladderError(
            f"{checkpoint} has the shards of {shards} processes, and this launch has {launch.world_size()}: DeepSpeed "
            f"resumes with the same number. Launch {shards} processes, or delete {checkpoint.parent} to train again"
        )


@contextmanager
def whole_parameters(*parameters: nn.Parameter) -> Iterator[None]:
    """Within, parameters that DeepSpeed has sharded are whole. All processes must call it, in the same order."""
    if any(hasattr(each, "ds_id") for each in parameters):
        import deepspeed  # type: ignore[import-not-found] # only if it is in use

        with deepspeed.zero.GatheredParameters(parameters):
            yield
    else:
        yield


def whole(weight: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor that FSDP may have sharded. All processes must call it, in the same order."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


@contextmanager
def ended_forward(model: nn.Module) -> Iterator[None]:
    """Within, every forward pass calls the output layer, also if trl multiplies with its weights instead.

    FSDP2 shards the output layer together with the last norm (and with tied embeddings). Before torch 2.13, a forward
    pass that does not call all of them never ends for FSDP2, and the next one finds sharded weights.
    """
    if launch.sharding() != "FSDP":
        yield
        return

    def call_output_layer(*_: object) -> None:
        layer: Any = model.get_output_embeddings()  # type: ignore[operator]
        layer(torch.empty(0, layer.in_features, device=layer.weight.device, dtype=layer.weight.dtype))

    hook = model.register_forward_hook(call_output_layer)
    try:
        yield
    finally:
        hook.remove()
