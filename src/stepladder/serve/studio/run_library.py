"""The runs that the studio shows.

In: a folder of runs, or one run. Out: the folder of each run by its name, which is its path below that folder. New runs
are found while the studio is open.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.pipeline.run_folder import is_run
from stepladder.serve.http.http_errors import HTTPError

#: Folders below the one that was given in which runs are looked for: a study has runs two levels down.
_DEPTH = 3
#: Folders that are looked at, at most: somebody may give a whole disk.
_MAX_FOLDERS = 20_000


class RunLibrary:
    """Runs by name."""

    def __init__(self, path: Path) -> None:
        """Raises if there is no such folder, or no run in it."""
        #: What was given, as it was typed.
        self.given = str(path)
        path = path.absolute()
        makes = f"`stepladder run RECIPE --out {path / 'NAME'}` makes a run"
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise StepladderError(f"{path} {what}: give a folder of runs, or one run. {makes}")
        if around := next((each for each in path.parents if is_run(each)), None):
            raise StepladderError(f"{path} is inside of a run: give the run itself, {around}")
        self._only = path.name if is_run(path) else None
        #: Where the names begin.
        self.root = path.parent if self._only else path
        self.path = path
        if not self._only and not self.names():
            raise StepladderError(
                f"{path} has no runs: give a folder that holds runs, or one run. {makes}; start it, then the studio"
            )

    def names(self) -> list[str]:
        """The names of all runs, sorted."""
        if self._only:
            return [self._only]
        found = _runs_below(self.root, _DEPTH, [_MAX_FOLDERS])
        return sorted(path.relative_to(self.root).as_posix() for path in found)

    def folder(self, name: str) -> Path:
        """The folder of a run. Raises `HTTPError` for a name that is none of these runs."""
        parts = name.split("/")
        path = self.root.joinpath(*parts)
        if (
            not (self._only is None or name == self._only)
            or len(parts) > _DEPTH
            or any(part in ("", ".", "..") or "\0" in part for part in parts)
            or not is_run(path)
            or not path.resolve().is_relative_to(self.root.resolve())
        ):
            raise HTTPError(404, f"there is no run {name[:200]!r} in {self.root}")
        return path


def _runs_below(folder: Path, depth: int, left: list[int]) -> Iterator[Path]:
    """The runs below a folder, not those inside of runs. `left`: how many folders may still be looked at."""
    try:
        with os.scandir(folder) as entries:
            inside = [entry.path for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:  # it was deleted meanwhile, or may not be read
        return
    for each in map(Path, inside):
        left[0] -= 1
        if left[0] < 0:
            return
        if is_run(each):
            yield each
        elif depth > 1:
            yield from _runs_below(each, depth - 1, left)
