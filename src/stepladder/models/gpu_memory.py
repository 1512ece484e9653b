"""How much of a GPU's memory this process may use: all of it, or its share where several runs go on together.

In: a device, and STEPLADDER_GPU_SHARE in the environment, which whoever starts several runs sets. Out: bytes. torch is
told to keep to the share too, so that a run that wants more meets its own limit before its neighbours'.
"""

import os

import torch

from stepladder.core.errors import StepladderError

SHARE = "STEPLADDER_GPU_SHARE"


def gpu_share() -> float:
    """The share of each GPU that is ours."""
    told = os.environ.get(SHARE, "1")
    try:
        share = float(told)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise StepladderError(f"{SHARE} is '{told}'; expected a number above 0 and at most 1, such as 0.25")
    return share


def apply_gpu_share(device: torch.device) -> torch.device:
    """The device, on which torch takes no more than our share from now on."""
    share = gpu_share()
    if device.type == "cuda" and share < 1:
        torch.cuda.set_per_process_memory_fraction(share, _number(device))
    return device


def shared_bytes(device: torch.device) -> int:
    """The memory of a GPU, as far as it is ours."""
    return int(torch.cuda.get_device_properties(device).total_memory * gpu_share())


def free_bytes(device: torch.device) -> int:
    """What of a GPU's memory is free, ours, or held by torch to be used again."""
    used, held = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    return max(min(torch.cuda.mem_get_info(_number(device))[0] + held, shared_bytes(device)) - used, 0)


def _number(device: torch.device) -> int:
    index: int | None = device.index  # torch's types say that there always is one
    return torch.cuda.current_device() if index is None else index
