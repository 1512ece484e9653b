"""How a run was made: commands, versions, machine, data, the whole recipe.

In: a `Run`. Out: an `Origin`: what somebody needs to make the same run.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.reporting.report.run_data import Run

#: How the program of a session may be called, when it was Stepladder's own command.
_OWN = ("stepladder", "__main__.py")


@dataclass(frozen=True, slots=True)
class Session:
    """One time that somebody worked on the run."""

    started: str
    command: str
    device: str
    #: Revision of Stepladder's sources, where they were a checkout.
    revision: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a run comes from."""

    sessions: tuple[Session, ...]
    facts: Mapping[str, str]
    versions: Mapping[str, str]
    recipe: str


def origin_of(run: Run) -> Origin:
    """What is known of how a run was made."""
    recipe = run.report.recipe
    shared = recipe.shared
    files = {f"{split} questions": str(path) for split, path in shared.data.files.items()}
    facts = {
        "recipe": recipe.name,
        "seed": str(recipe.seed),
        "policy": shared.policy,
        "agent": shared.agent,
        "data": data_text(run),
        **files,
        "index": str(shared.data.index) if shared.data.index is not None else "made of the data's own passages",
        "passages a search": str(shared.search.k),
        "limits": f"{shared.episode.max_steps} steps a question, {shared.episode.max_tokens} tokens a step",
    }
    return Origin(tuple(map(_session, run.sessions)), facts, _versions(run), run.recipe_text)


def data_text(run: Run) -> str:
    """The questions and the corpus, in a few words."""
    data = run.report.recipe.shared.data
    if data.name is None:
        return "question files"
    return f"{data.name}, world {data.world_seed}" if data.name == "atlas" else data.name


def _session(session: Mapping[str, Any]) -> Session:
    git = session.get("git") or {}
    revision = str(git.get("revision", ""))[:12]
    return Session(
        str(session.get("started", "")).replace("T", " ").replace("+00:00", " UTC"),
        command_text([str(each) for each in session.get("command", ())]),
        str(session.get("device", "")),
        f"{revision}, changed since" if revision and git.get("dirty") else revision,
    )


def command_text(arguments: list[str]) -> str:
    """A command line as it can be typed again.

    >>> command_text(["/usr/bin/stepladder", "run", "prorag-nano", "--out", "my run"])
    "stepladder run prorag-nano --out 'my run'"
    """
    program = Path(arguments[0]).name if arguments else ""
    return shlex.join(["stepladder", *arguments[1:]] if program in _OWN else arguments)


def _versions(run: Run) -> dict[str, str]:
    """By library: its version, or all of them in turn where sessions differ."""
    found: dict[str, dict[str, None]] = {}
    for session in run.sessions:
        for name, version in session.get("versions", {}).items():
            found.setdefault(name, {})[str(version)] = None
    return {name: ", then ".join(versions) for name, versions in found.items()}
