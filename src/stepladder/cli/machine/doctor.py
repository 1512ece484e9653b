"""`doctor` checks this installation: versions, devices, what is missing and the command that installs it."""

import importlib.metadata
import os
import platform
import re
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import typer
from packaging.requirements import Requirement

from stepladder.cli.declarations import print_json, say
from stepladder.cli.options import AsJson
from stepladder.core.extras import install_command
from stepladder.core.trace_printer import printable
from stepladder.core.version import __version__

#: Extras and what they add.
EXTRAS = {
    "dense": "encoders and FAISS",
    "documents": "PDF, HTML and DOCX files",
    "vllm": "vLLM",
    "ray": "Ray",
    "milvus": "Milvus, embedded and client",
    "gguf": "models in GGUF files",
    "smollm2": "the weights of SmolLM2-135M",
    "constrained": "constrained decoding in process",
    "gym": "a Gymnasium environment",
    "mcp": "the agent as an MCP tool",
    "trackers": "TensorBoard and trackio",
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
        print_json([asdict(finding) for finding in findings])
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
    version, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    python = Finding("Python", f"{version} on {system}", sys.version_info >= (3, 11))
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    disk = Finding("disk", f"{free:,.0f} GiB free here", ok=free >= 2, fix="" if free >= 2 else "free some space")
    try:
        packages, extras = _packages(), _extras()
    except importlib.metadata.PackageNotFoundError:
        packages, extras = [Finding("stepladder", "not installed", ok=False, fix=install_command())], []
    return [python, *packages, *_devices(), *extras, disk]


def _requirements(extra: str = "") -> list[tuple[Requirement, str, str]]:
    """The requirements in the package metadata: each with the installed version and what is wrong with it."""
    found = []
    for requirement in map(Requirement, importlib.metadata.requires("stepladder") or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            try:
                version = importlib.metadata.version(requirement.name)
                fits = requirement.specifier.contains(version, prereleases=True)
                problem = "" if fits else f"{version}, but {requirement.specifier} is needed"
            except importlib.metadata.PackageNotFoundError:
                version, problem = "", "missing"
            found.append((requirement, version, problem))
    return found


def _packages() -> list[Finding]:
    return [
        Finding("stepladder", __version__),
        *(
            Finding(package.name, problem or version, ok=not problem, fix=install_command() if problem else "")
            for package, version, problem in _requirements()
        ),
    ]


def _extras() -> list[Finding]:
    findings = []
    common = {str(package) for package, *_ in _requirements()}
    for extra, purpose in EXTRAS.items():
        missing = any(problem for package, _, problem in _requirements(extra) if str(package) not in common)
        state, fix = ("not installed", install_command(extra)) if missing else ("installed", "")
        findings.append(Finding(f"extra {extra}", f"{state} ({purpose})", ok=not missing, optional=missing, fix=fix))
    return findings


def _devices() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    fast = "bf16 is fast here" if _cpu_features() & {"amx_bf16", "avx512_bf16", "bf16"} else "use fp32 here"
    findings = [Finding("CPU", f"{cores} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB memory, {fast}")]
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
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", path.read_text(), re.MULTILINE) if path.is_file() else None
    return set(flags[1].split()) if flags else set()
