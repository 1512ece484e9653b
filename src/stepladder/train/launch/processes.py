"""The processes of a training run, started by torchrun or `accelerate launch`.

In: the device of the run. Out: `Processes`: who this process is, and what the processes tell each other. Every process
trains its share of a batch; only the main process writes, and what it alone does, the others wait for.

Messages go through a process group of their own, on gloo, which may wait for days: the main process may explore or
sample for hours. A process that ends closes its connections, so that the others do not wait for it.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import distributed

from stepladder.core.errors import StepladderError
from stepladder.core.io import launch
from stepladder.models.gpu_memory import SHARE, apply_gpu_share, gpu_share

Value = TypeVar("Value")
Result = TypeVar("Result")
#: Of gradients and weights: processes wait this long for the slowest rollouts, and no longer for one that hangs.
_TIMEOUT = timedelta(hours=3)
#: Of messages.
_PATIENCE = timedelta(days=30)
#: Parts of the messages of gloo and NCCL about a process that is gone.
_LOST = ("Connection closed by peer", "Connection reset", "Broken pipe", "remote process exited", "Connection refused")


class Processes:
    """This process, and its connection to the others."""

    def __init__(self, device: torch.device) -> None:
        """`device`: what the run was configured with."""
        self.process_index, self.num_processes = launch.rank(), launch.world_size()
        self.is_main_process = self.process_index == 0
        self.device = device
        if self.num_processes > 1:
            if device.type == "cuda":
                _share_gpus()
            state = PartialState(cpu=device.type == "cpu", timeout=_TIMEOUT)
            self.device = apply_gpu_share(state.device)
            _messages()

    def map(self, values: Sequence[Value], work: Callable[[Sequence[Value]], Sequence[Result]]) -> list[Result]:
        """The results of all values, in order. Every process does the work on its share, which may be empty."""
        shares = self.gather(list(work(values[self.process_index :: self.num_processes])))
        return [shares[place % self.num_processes][place // self.num_processes] for place in range(len(values))]

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, by rank."""
        found: list[Any] = [value] * self.num_processes
        if self.num_processes > 1:
            with lost_processes():
                distributed.all_gather_object(found, value, group=_messages())
        return found

    def from_main(self, value: Value) -> Value:
        """The value of the main process."""
        sent = [value]
        if self.num_processes > 1:
            with lost_processes():
                distributed.broadcast_object_list(sent, src=0, group=_messages())
        return sent[0]

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.gather(None)

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process goes first, the others afterwards; if it fails, they end too."""
        if not self.is_main_process:
            self._check_main()
        try:
            yield
        except BaseException as error:
            if self.is_main_process:
                with suppress(launch.LostProcess):  # this error is the one to report
                    self.from_main(_message(error))
            raise
        if self.is_main_process:
            self.from_main(None)

    def _check_main(self) -> None:
        if (failure := self.from_main("")) is not None:
            raise launch.MainProcessFailed(f"the main process failed: {failure}")


@contextmanager
def lost_processes() -> Iterator[None]:
    """Within, the error of a connection to a process that is gone is a `launch.LostProcess`."""
    try:
        yield
    except RuntimeError as error:  # of gloo and NCCL, which have no type of their own for it
        if launch.world_size() > 1 and any(sign in str(error) for sign in _LOST):
            raise launch.LostProcess from error
        raise


@cache
def _messages() -> Any:
    store = distributed.distributed_c10d._get_default_store()
    launch.share_counter(lambda name: int(store.add(f"stepladder {name}", 1)))
    return distributed.new_group(backend="gloo", timeout=_PATIENCE)


def _message(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _share_gpus() -> None:
    """Let processes share GPUs if there are more of them, which they do only if each has a share of the memory."""
    found, needed = torch.cuda.device_count(), launch.local_world_size()
    if needed <= found:
        return
    each = -(-needed // max(found, 1))
    if not found or gpu_share() * each > 1:
        raise _too_few_gpus(found, needed, each)
    # NCCL refuses several processes on one GPU of a machine, but not on several machines, which share no memory.
    os.environ.update({"NCCL_HOSTID": f"process {launch.rank()}", "NCCL_NET": "Socket", "NCCL_MNNVL_ENABLE": "0"})
    if needed == launch.world_size():
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    os.environ["LOCAL_RANK"] = str(launch.local_rank() % found)  # by which accelerate and torch choose the GPU


def _too_few_gpus(found: int, needed: int, each: int) -> StepladderError:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    seen = "" if visible is None else f" (CUDA_VISIBLE_DEVICES is '{visible}')"
    share = int(100 / each) / 100
    return StepladderError(
        f"{needed} processes were launched on this machine, and torch finds {found} "
        f"{'GPU' if found == 1 else 'GPUs'}{seen}: every process needs its own. Launch {found} "
        f"(--nproc-per-node {found} of torchrun, --num_processes {found} of accelerate), or set device: cpu. To share "
        f"GPUs on purpose, which is slow, set {SHARE}={share}, the share of its GPU's memory for each process"
    )
