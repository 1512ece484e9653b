"""The GPU memory that this process may use: all of it, or a share where several runs use one GPU.

In: a device, and the environment variable STEPLADDER_GPU_SHARE, set by the launcher of several runs. Out: bytes.
torch's allocator gets the same limit, so that a run that exceeds its share fails instead of its neighbors.
"""

import os

import torch

from stepladder.core.errors import StepladderError

SHARE = "STEPLADDER_GPU_SHARE"


def gpu_share() -> float:
    """The share of each GPU's memory that this process may use."""
    value = os.environ.get(SHARE, "1")
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise StepladderError(f"{SHARE} is '{value}'; expected a number above 0 and at most 1, such as 0.25")
    return share


def apply_gpu_share(device: torch.device) -> torch.device:
    """Limit torch's allocator to the share; returns the device."""
    share = gpu_share()
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, _index(device))
    return device


def shared_bytes(device: torch.device) -> int:
    """This process's share of a GPU's memory."""
    return int(torch.cuda.get_device_properties(device).total_memory * gpu_share())


def free_bytes(device: torch.device) -> int:
    """Free GPU memory within the share, including what torch has reserved but not allocated."""
    allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    return max(min(torch.cuda.mem_get_info(_index(device))[0] + reserved, shared_bytes(device)) - allocated, 0)


def _index(device: torch.device) -> int:
    index: int | None = device.index  # typed as int in torch, but may be None
    return torch.cuda.current_device() if index is None else index
