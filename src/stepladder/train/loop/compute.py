"""The device, precision, seed and processes of a training run."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import set_seed

from stepladder.core.errors import StepladderError
from stepladder.core.io import launch
from stepladder.core.seeding import seed_of
from stepladder.models.devices import pick_device, pick_dtype
from stepladder.train.launch.processes import Processes
from stepladder.train.launch.sharding import check_launch
from stepladder.train.loop.config import TrainingConfig
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.trackers import check_trackers

#: Makes a context manager within which models compute in some precision.
Precision = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Compute:
    """Where and how a training run computes."""

    device: torch.device
    bf16: bool
    #: 32 bits, as NumPy's global generator takes.
    seed: int
    #: Under torchrun or accelerate every process trains its share; only the main process writes.
    processes: Processes
    #: Trackers to report to.
    trackers: tuple[str, ...] = ()

    @property
    def is_sharded(self) -> bool:
        """Whether a process has only a part of the weights in training, which are in fp32."""
        return launch.sharding() is not None

    @property
    def weights_device(self) -> torch.device:
        """Where the weights in training are loaded: a shard is moved to the device when it is made."""
        return torch.device("cpu") if self.is_sharded else self.device

    @property
    def autocast(self) -> torch.autocast:
        """Mixed precision, if configured."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)


def prepare_compute(config: TrainingConfig, context: TrainingContext, kind: str) -> Compute:
    """Set up the device and seed all global generators."""
    trackers = context.report_to if config.report_to is None else config.report_to
    check_trackers(trackers)
    device = pick_device(context.device)
    if device.index:
        raise StepladderError(
            f"training uses the first visible GPU, not '{context.device}'; set CUDA_VISIBLE_DEVICES={device.index}"
        )
    bf16 = pick_dtype(config.precision, device) is torch.bfloat16
    check_launch(config)
    processes = Processes(device)
    device = processes.device
    seed = seed_of(context.seed, kind) % 2**32
    set_seed(seed)
    pick_dtype(context.dtype, device)  # an unknown name fails now, not at the end
    return Compute(device, bf16, seed, processes, trackers)
