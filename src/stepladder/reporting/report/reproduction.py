"""What is needed to reproduce a run: commands, versions, machine, data and the full recipe.

In: a `RunData`. Out: a `Reproduction`.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.io.masking import mask_command
from stepladder.reporting.report.run_data import RunData

#: Program names of Stepladder's own command.
_OWN_PROGRAMS = ("stepladder", "__main__.py")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """How a run was made."""

    #: The command of each invocation, and where it ran.
    commands: list[tuple[str, str]]
    facts: Mapping[str, str]
    versions: Mapping[str, str]


def reproduction_of(run: RunData) -> Reproduction:
    """How a run was made."""
    recipe = run.report.recipe
    shared = recipe.shared
    facts = {
        "recipe": recipe.name,
        "seed": str(recipe.seed),
        "policy": shared.policy,
        "agent": shared.agent,
        "data": data_text(run),
        **{f"{split} questions": str(path) for split, path in shared.data.files.items()},
        "index": str(shared.data.index) if shared.data.index is not None else "built from the passages of the data",
        "passages per search": str(shared.search.k),
        "limits": f"{shared.episode.max_steps} steps per question, {shared.episode.max_tokens} tokens per step",
    }
    versions: dict[str, dict[str, None]] = {}
    for session in run.sessions:
        for name, version in session.get("versions", {}).items():
            versions.setdefault(name, {})[str(version)] = None
    return Reproduction(
        [
            (command_text([str(each) for each in session.get("command", ())]), _place(session))
            for session in run.sessions
        ],
        facts,
        {name: ", then ".join(found) for name, found in versions.items()},
    )


def data_text(run: RunData) -> str:
    """A short description of the questions and the corpus."""
    data = run.report.recipe.shared.data
    if data.name is None:
        return "question files"
    return f"{data.name}, world {data.world_seed}" if data.name == "atlas" else data.name


def _place(session: Mapping[str, Any]) -> str:
    """Start, device and Git revision of an invocation, as far as they are known."""
    git = session.get("git") or {}
    started = str(session.get("started", "")).replace("T", " ").replace("+00:00", " UTC")
    revision = f"revision {git['revision'][:12]}" if git.get("revision") else ""
    changed = ", with local changes" if revision and git.get("dirty") else ""
    return " · ".join(filter(None, (started, str(session.get("device", "")), revision + changed)))


def command_text(arguments: list[str]) -> str:
    """A command line, quoted for a shell.

    >>> command_text(["/usr/bin/stepladder", "run", "prorag-nano", "--out", "my run"])
    "stepladder run prorag-nano --out 'my run'"
    """
    arguments = mask_command(arguments)  # runs of older versions have stored passwords
    program = Path(arguments[0]).name if arguments else ""
    return shlex.join(["stepladder", *arguments[1:]] if program in _OWN_PROGRAMS else arguments)
