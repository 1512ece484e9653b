"""Provenance of a session: versions, git revision, machine, command line. Out: plain data for run.json."""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stepladder.core.io.masking import mask_command
from stepladder.core.version import __version__
from stepladder.pipeline.recipe import Recipe

_LIBRARIES = ("torch", "transformers", "peft", "accelerate")


def describe_session(recipe: Recipe) -> dict[str, Any]:
    """Describe the current process. Raises if the requested device does not exist."""
    process = describe_process()
    return {
        **{name: process.pop(name) for name in ("started", "command")},
        "name": recipe.name,
        "seed": recipe.seed,
        **process,
        "device": _device(recipe.shared.device),
    }


def describe_process() -> dict[str, Any]:
    """Describe the current process: when it was started and how, the versions and the machine."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": mask_command(sys.argv),
        "versions": {
            "stepladder": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in _LIBRARIES},
        },
        "git": _git(Path(__file__).parents[3]),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
    }


def commit_of(session: Mapping[str, Any]) -> str | None:
    """The git revision of a session, and whether files were changed; None if it is not known.

    >>> commit_of({"git": {"revision": "abc123", "dirty": True}})
    'abc123 with changes'
    """
    git = session.get("git")
    return None if git is None else git["revision"] + (" with changes" if git["dirty"] else "")


def hardware_of(session: Mapping[str, Any]) -> str:
    """The device and the cores of a session.

    >>> hardware_of({"device": "cuda (NVIDIA H200)", "cores": 16})
    'cuda (NVIDIA H200), 16 CPU cores'
    """
    return f"{session.get('device', 'unknown device')}, {session.get('cores', '?')} CPU cores"


def _device(name: str) -> str:
    import torch  # slow to import

    from stepladder.models.devices import pick_device

    device = pick_device(name)
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _git(checkout: Path) -> dict[str, Any] | None:
    """The git revision of Stepladder, if it runs from a checkout and git is installed."""
    if not (checkout / ".git").exists():
        return None
    ask = partial(subprocess.check_output, cwd=checkout, text=True, timeout=30, stderr=subprocess.DEVNULL)
    try:
        return {
            "revision": ask(["git", "rev-parse", "HEAD"]).strip(),
            "dirty": bool(ask(["git", "status", "-s"]).strip()),
        }
    except (OSError, subprocess.SubprocessError):
        return None
