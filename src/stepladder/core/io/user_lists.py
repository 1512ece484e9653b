"""Lists of what a user trusts, as JSON in the user's configuration folder. Only the user may write them."""

import json
import os
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file, expand_path


def user_list(name: str) -> Path:
    """The file of a list."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (folder if folder.is_absolute() else expand_path("~/.config")) / "stepladder" / name


def read_list(name: str, again: str) -> dict[str, Any]:
    """The entries of a list. A file that others can write is not used; `again`: how the user makes a new one."""
    file = user_list(name)
    try:
        with file.open(encoding="utf-8") as opened:
            state = os.fstat(opened.fileno())
            if os.name != "nt" and (state.st_uid != os.getuid() or state.st_mode & 0o022):
                raise StepladderError(f"{file} can be changed by other users: delete it, and {again}")
            stored = json.load(opened)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise StepladderError(f"{file} cannot be read ({error}): delete it, and {again}") from error
    return stored if isinstance(stored, dict) else {}


def write_list(name: str, entries: dict[str, Any]) -> None:
    """Write a list."""
    file = user_list(name)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with atomic_file(file, what="list") as opened:
        Path(opened.name).chmod(0o600)
        opened.write(json.dumps(entries, indent=2, sort_keys=True) + "\n")
