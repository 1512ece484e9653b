"""Which agent files may be executed: those the user named in this process, and those the user trusted before.

In: paths that the user typed (`--agent FILE`, `--set agent=FILE`) or passed to a function. Out: a check of every agent
file before it is executed. A path in a recipe, a run folder or an adapter names nothing: such files may be downloaded.
`--trust-agent` stores the path and the SHA-256 of a file in `trusted_agents.json` of the user's configuration folder;
a file at this path with this content may then be executed without being named.
"""

import os
from hashlib import sha256
from pathlib import Path
from shlex import quote

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.io.user_lists import read_list, write_list

#: Largest agent file in bytes. A file that a run names is read before anybody has vouched for it.
_MAX_BYTES = 1_000_000

_FILE = "trusted_agents.json"
_named: set[Path] = set()


def is_agent_file(name: str) -> bool:
    """Whether the name of an agent is the path of a Python file. Does not read the file."""
    return name.endswith(".py")


def name_agent(agent: str | os.PathLike[str] | None, *, trust: bool = False) -> None:
    """The user names an agent: if it is a file, it may be executed in this process. `trust` remembers its content."""
    if agent is not None and is_agent_file(os.fspath(agent)):
        path = expand_path(os.fspath(agent)).absolute()
        _named.add(path)
        if trust:
            _remember(path, read_agent_file(path))
    elif trust:
        raise StepladderError("--trust-agent remembers the agent file of this command: add --agent FILE.py")


def named_agents() -> tuple[str, ...]:
    """The agent files that the user has named in this process."""
    return tuple(sorted(map(str, _named)))


def read_agent_file(path: Path) -> bytes:
    """The source of an agent file."""
    try:
        if path.exists() and not path.is_file():  # reading a named pipe would wait forever
            raise StepladderError(f"the agent file {path.absolute()} is not a regular file")
        with path.open("rb") as file:
            source = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise StepladderError(f"the agent file {path.absolute()} cannot be read: {error.strerror or error}") from error
    if len(source) > _MAX_BYTES:
        raise StepladderError(f"the agent file {path.absolute()} is too large; expected at most {_MAX_BYTES:,} bytes")
    return source


def check_may_execute(path: Path, source: bytes) -> None:
    """Raise unless the user named this file in this process, or has trusted this content at this path."""
    path = path.absolute()
    digest = sha256(source).hexdigest()
    if path not in _named and _trusted().get(str(path)) != digest:
        raise StepladderError(
            f"the agent file {path} was not executed: it is named by a run or a recipe, not by you. Read it, then add "
            f"--agent {quote(str(path))} (in Python agent={str(path)!r}); --trust-agent remembers its content (SHA-256 "
            f"{digest})"
        )


def _trusted() -> dict[str, str]:
    """SHA-256 by path."""
    return read_list(_FILE, "trust your agents again")


def _remember(path: Path, source: bytes) -> None:
    write_list(_FILE, {**_trusted(), str(path): sha256(source).hexdigest()})
