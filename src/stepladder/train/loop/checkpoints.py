"""Checkpoints of transformers' trainer that survive a kill at any moment, and are checked before they are used.

The trainer writes a checkpoint file by file. When it is done, `keep` writes a marker file into the folder: the size and
a checksum of every other file (of all bytes up to 1 GiB, of a few blocks of larger files). A folder without a marker is
incomplete; one whose files differ from it is damaged. Both are removed at the next start, which resumes from the newest
that is left. A checkpoint that is not needed any more loses its marker first and then its files. The newest and the
best checkpoints are kept.
"""

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.io.checksums import describe, difference
from stepladder.core.io.files import WriteError, atomic_file, full_disk_errors, sync_all

_MARKER = "complete"


class Checkpoints:
    """The checkpoints in a folder, named `checkpoint-STEP` by the trainer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, step: int) -> Path:
        """The folder of the checkpoint after this many updates."""
        return self.folder / f"checkpoint-{step}"

    @property
    def complete(self) -> list[int]:
        """Steps of the complete checkpoints, newest last."""
        return sorted(step for step in self._all() if (self.at(step) / _MARKER).exists())

    def remove_unusable(self) -> str | None:
        """Remove what a killed process left, and damaged checkpoints with all newer ones. Returns what was damaged.

        A newer checkpoint may need a damaged one: as the best so far, or to roll back to.
        """
        complete = self.complete
        for step in set(self._all()) - set(complete):
            shutil.rmtree(self.at(step))
        for position, step in enumerate(complete):
            if (damage := self._damage(step)) is not None:
                for newer in reversed(complete[position:]):
                    self._remove(newer)
                return f"{self.at(step)} is damaged: {damage}"
        return None

    @contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """While the trainer writes a checkpoint: a full disk is an error that says so, and leaves nothing there."""
        try:
            with full_disk_errors(self.at(step), "checkpoint", "The same command resumes from the one before."):
                yield
        except WriteError:
            shutil.rmtree(self.at(step), ignore_errors=True)
            raise

    def keep(self, step: int, also: Collection[int] = ()) -> None:
        """Mark a checkpoint as complete and remove all others, except for the steps in `also`."""
        folder = self.at(step)
        sync_all(folder)  # before the file that marks it as complete
        names = sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())
        with atomic_file(folder / _MARKER) as file:
            json.dump(describe(folder, names), file, indent=1)
        for other in set(self._all()) - {step, *also}:
            self._remove(other)

    def _damage(self, step: int) -> str | None:
        """What is wrong with the files of a complete checkpoint."""
        folder = self.at(step)
        try:
            files = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
            found = {name: difference(folder / name, size, quick) for name, (size, quick) in files.items()}
        except FileNotFoundError:
            return f"its list of files, {_MARKER!r}, is missing"
        except OSError as error:  # a disk that is not there now: nothing is removed
            raise StepladderError(f"{folder} cannot be read: {error.strerror or error}") from error
        except (ValueError, TypeError, AttributeError):
            return f"its list of files, {_MARKER!r}, cannot be read"
        return next((f"{name} {problem}" for name, problem in found.items() if problem is not None), None)

    def _remove(self, step: int) -> None:
        (self.at(step) / _MARKER).unlink(missing_ok=True)
        shutil.rmtree(self.at(step))

    def _all(self) -> list[int]:
        numbers = (path.name.removeprefix("checkpoint-") for path in self.folder.glob("checkpoint-*"))
        return [int(number) for number in numbers if number.isdecimal()]
