"""Is this machine ready? Versions, devices, what is missing and the command that installs it.

Out: a list of `Finding`s, each something that is there or a thing to do.
"""

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

#: Extras, with what they are for.
EXTRAS = {
    "dense": "embedding search",
    "vllm": "fast generation on GPUs",
    "ray": "more than one machine",
    "milvus": "corpora beyond one machine",
    "smollm2": "a small pretrained language model",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` is the command that mends it, where something is missing."""

    what: str
    state: str
    ok: bool = True
    #: Missing, but nothing needs it unless you ask for it.
    optional: bool = False
    fix: str = ""


def examine() -> list[Finding]:
    """Look at Python, packages, extras, devices and disk."""
    return [_python(), *_packages(), *_devices(), *_extras(), _disk()]


def install_command(extra: str = "") -> str:
    """The pip command for this installation, from the checkout it is in or from the index."""
    root = Path(__file__).parents[2]
    in_checkout = (root / "constraints.txt").is_file()
    wanted = f"[{extra}]" if extra else ""
    if in_checkout:
        return f"{_pip()} -c {root}/constraints.txt -e '{root}{wanted}'"
    return f"{_pip()} 'stepladder{wanted}'"


def _pip() -> str:
    return f"{sys.executable} -m pip install"


def _python() -> Finding:
    version = platform.python_version()
    return Finding("Python", f"{version} on {platform.system()} {platform.machine()}", sys.version_info >= (3, 11))


def _requirements() -> dict[str, list[str]]:
    """Names of required distributions by extra; "" for the core."""
    wanted: dict[str, list[str]] = {}
    for line in importlib.metadata.requires("stepladder") or []:
        name = re.split(r"[^A-Za-z0-9_.-]", line)[0]
        extra = re.search(r"extra == ['\"]([^'\"]+)", line)
        wanted.setdefault(extra[1] if extra else "", []).append(name)
    return wanted


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> list[Finding]:
    findings = [Finding("stepladder", _version("stepladder") or "not installed")]
    for name in _requirements()[""]:
        version = _version(name)
        if version is None:
            findings.append(Finding(name, "missing", ok=False, fix=install_command()))
        else:
            findings.append(Finding(name, version))
    return findings


def _extras() -> list[Finding]:
    findings = []
    for extra, purpose in EXTRAS.items():
        missing = [name for name in _requirements().get(extra, []) if _version(name) is None]
        if missing:
            state = f"not installed ({purpose})"
            findings.append(Finding(f"extra {extra}", state, ok=False, optional=True, fix=install_command(extra)))
        else:
            findings.append(Finding(f"extra {extra}", f"installed ({purpose})"))
    return findings


def _devices() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    features = _cpu_features()
    fast = "bf16 is fast here" if features & {"amx_bf16", "avx512_bf16"} else "use fp32 here"
    findings = [Finding("CPU", f"{cores} cores, {_memory()}, {fast}")]
    try:
        import torch
    except (ImportError, OSError) as error:
        return [*findings, Finding("torch", f"cannot be imported: {error}", ok=False, fix=install_command())]
    if not torch.cuda.is_available():
        return [*findings, Finding("GPU", "none seen by torch; everything runs on the CPU")]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        findings.append(Finding(f"cuda:{index}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB"))
    return findings


def _cpu_features() -> set[str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return set()
    flags = re.search(r"^flags\s*:(.*)$", path.read_text(), re.MULTILINE)
    return set(flags[1].split()) if flags else set()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB memory"


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    return Finding("disk", f"{free:,.0f} GiB free here", ok=free >= 2, fix="" if free >= 2 else "free some space")
