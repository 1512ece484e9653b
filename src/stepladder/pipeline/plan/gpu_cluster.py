"""The hardware of a plan: `8xH100-80G`, `H200-141G`, `cpu`, `cpu-64G`.

In: a specification. Out: a `Cluster`: how many devices of which kind, with the memory of each.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from stepladder.core.errors import StepladderError, nearest

CPU = "cpu"
GIB = 2**30
#: The share of a GPU's nominal memory that programs see.
_USABLE = 0.985
_SPECIFICATION = re.compile(r"(?:(?P<count>\d+)\s*[x*]\s*)?(?P<name>[a-z][\w-]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices of one kind."""

    count: int
    #: As in `constants.yaml`, or `cpu`.
    device: str
    #: Bytes of memory of one device that programs can use; of a CPU all of it.
    memory: int

    @property
    def is_cpu(self) -> bool:
        """Whether there is no GPU."""
        return self.device == CPU

    def __str__(self) -> str:
        return f"{CPU} ({self.memory / GIB:,.0f} GiB)" if self.is_cpu else f"{self.count}x{self.device}"


def parse_cluster(text: str, devices: Mapping[str, Mapping[str, Any]]) -> Cluster:
    """The devices that a text names. `devices`: the known ones."""
    matched = _SPECIFICATION.fullmatch(text.strip())
    count, name = (int(matched["count"] or 1), matched["name"]) if matched else (0, "")
    cpu = re.fullmatch(r"cpu(?:-0*([1-9]\d*)g)?", name.lower())
    if count < 1 or (cpu and count > 1):
        raise StepladderError(
            f"--gpus '{text}': expected a number and a GPU, such as 8xH100-80G, or cpu. {_known(devices)}"
        )
    if cpu:
        memory = int(cpu[1]) * GIB if cpu[1] else psutil.virtual_memory().total
        return Cluster(1, CPU, int(memory))
    found = [each for each in devices if name.lower() in (each.lower(), each.lower().rpartition("-")[0])]
    if len(found) > 1:
        raise StepladderError(f"--gpus '{text}': say which one: {' or '.join(found)}")
    if not found:
        hint = nearest(name, {each.lower(): each for each in devices}).upper().replace(" DID YOU MEAN", " Did you mean")
        raise StepladderError(f"--gpus '{text}': unknown GPU '{name}'.{hint} {_known(devices)}")
    return Cluster(count, found[0], int(float(devices[found[0]]["memory"]) * GIB * _USABLE))


def _known(devices: Mapping[str, Any]) -> str:
    return f"Known: {', '.join(devices)}, {CPU}"


def this_machine(devices: Mapping[str, Mapping[str, Any]]) -> Cluster:
    """The GPUs of this machine, or its CPU."""
    import torch

    if not torch.cuda.is_available():
        return parse_cluster(CPU, devices)
    count, name = torch.cuda.device_count(), torch.cuda.get_device_name()
    total = torch.cuda.get_device_properties(0).total_memory
    words = re.findall(r"[A-Z0-9]+", name.upper().replace("RTX ", "RTX"))
    known = [each for each in devices if each.rpartition("-")[0].upper() in words]
    if not known:
        raise StepladderError(
            f"this machine has {name}, which is not known: name a similar one with --gpus. {_known(devices)}"
        )
    closest = min(known, key=lambda each: abs(float(devices[each]["memory"]) * GIB - total))
    return Cluster(count, closest, int(total))
