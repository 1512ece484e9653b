"""`doctor` checks this installation: versions, devices, what is missing and the command that installs it."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from packaging.requirements import Requirement

from stepladder.cli.declarations import say
from stepladder.cli.options import AsJson
from stepladder.core.extras import install_command
from stepladder.core.trace_printer import printable
from stepladder.core.version import __version__

#: Extras and what they add.
EXTRAS = {
    "dense": "encoders and FAISS",
    "vllm": "vLLM",
    "ray": "Ray",
    "milvus": "Milvus, embedded and client",
    "gguf": "models in GGUF files",
    "smollm2": "the weights of SmolLM2-135M",
    "gym": "a Gymnasium environment",
    "mcp": "the agent as an MCP tool",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `fix` is the command that installs what is missing."""

    what: str
    state: str
    ok: bool = True
    #: Missing, but only needed for some features.
    optional: bool = False
    fix: str = ""


def doctor_command(as_json: AsJson = False) -> None:
    """Check versions and devices; show what is missing and the command that installs it."""
    findings = check_installation()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "[green]ok[/]     " if finding.ok else "[dim]absent[/] " if finding.optional else "[red]missing[/]"
            say(f"{mark} {finding.what:<14} {printable(finding.state)}")
            if finding.fix:
                say(f"{'':<22} [dim]{printable(finding.fix)}[/]")
    if any(not finding.ok and not finding.optional for finding in findings):
        raise typer.Exit(1)


def check_installation() -> list[Finding]:
    """Check Python, packages, extras, devices and disk."""
    return [_python(), *_packages(), *_devices(), *_extras(), _disk()]


def _python() -> Finding:
    version = platform.python_version()
    return Finding("Python", f"{version} on {platform.system()} {platform.machine()}", sys.version_info >= (3, 11))


def _requirements() -> list[Requirement]:
    """The requirements in the package metadata. Empty if the package is not installed."""
    try:
        return [Requirement(line) for line in importlib.metadata.requires("stepladder") or []]
    except importlib.metadata.PackageNotFoundError:
        return []


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _problem(requirement: Requirement) -> str:
    """What is wrong with the installed version; empty if nothing is."""
    version = _version(requirement.name)
    if version is None:
        return "missing"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{version}, but {requirement.specifier} is needed"
    return ""


def _packages() -> list[Finding]:
    if _version("stepladder") is None:
        return [Finding("stepladder", "not installed", ok=False, fix=install_command())]
    findings = [Finding("stepladder", __version__)]
    for requirement in _requirements():
        if requirement.marker is not None and "extra" in str(requirement.marker):
            continue
        problem = _problem(requirement)
        state = problem or _version(requirement.name) or ""
        findings.append(Finding(requirement.name, state, ok=not problem, fix=install_command() if problem else ""))
    return findings


def _extras() -> list[Finding]:
    findings = []
    for extra, purpose in EXTRAS.items():
        wanted = [each for each in _requirements() if each.marker and each.marker.evaluate({"extra": extra})]
        if any(_problem(each) for each in wanted):
            state = f"not installed ({purpose})"
            findings.append(Finding(f"extra {extra}", state, ok=False, optional=True, fix=install_command(extra)))
        elif wanted:
            findings.append(Finding(f"extra {extra}", f"installed ({purpose})"))
    return findings


def _devices() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    features = _cpu_features()
    fast = "bf16 is fast here" if features & {"amx_bf16", "avx512_bf16", "bf16"} else "use fp32 here"
    findings = [Finding("CPU", f"{cores} cores, {_memory()}, {fast}")]
    try:
        import torch
    except (ImportError, OSError) as error:
        return [*findings, Finding("torch", f"cannot be imported: {error}", ok=False, fix=install_command())]
    if not torch.cuda.is_available():
        return [*findings, Finding("GPU", "none found by torch; everything runs on the CPU")]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        findings.append(Finding(f"cuda:{index}", f"{device.name}, {device.total_memory / 2**30:.0f} GiB"))
    return findings


def _cpu_features() -> set[str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return set()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", path.read_text(), re.MULTILINE)
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
