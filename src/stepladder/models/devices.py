"""Which device and which dtype a model has, by the names in settings.

In: a name, such as auto, cuda:1 or bf16. Out: torch's device or dtype, or an error that says what is missing.
"""

import platform
from functools import cache
from logging import getLogger

import torch

from stepladder.core.errors import StepladderError, unknown_name
from stepladder.models.gpu_memory import apply_gpu_share

log = getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return apply_gpu_share(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise StepladderError(f"unknown device '{name}'; use auto, cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise StepladderError(f"device '{name}' was requested, but torch finds no CUDA device (`stepladder doctor`)")
    return apply_gpu_share(device)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype with that name; auto is bf16 on CUDA, else fp32. CPUs without bf16 support use fp32."""
    if name not in ("auto", *DTYPES):
        raise unknown_name("dtype", name, ("auto", *DTYPES))
    dtype = DTYPES.get(name, torch.bfloat16 if device.type == "cuda" else torch.float32)
    if dtype is torch.bfloat16 and device.type == "cpu" and not _cpu_supports_bf16():
        return torch.float32
    return dtype


@cache
def _cpu_supports_bf16() -> bool:
    """Whether the CPU multiplies in bf16. Emulated with AVX-512 it is slower than fp32, by torch hundreds of times."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() and (not _is_x86() or x86_multiplies_bf16()):
        return True
    log.warning("this CPU does not support bf16: using fp32 instead")
    return False


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def x86_multiplies_bf16() -> bool:
    """Whether an x86 CPU has instructions for bf16."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
