"""Checkpoints of transformers' trainer that a kill at any moment cannot spoil.

The trainer writes a checkpoint file by file. When it is done, `keep` puts a mark into the folder; what has no mark was
cut off, and is removed at the next start. A checkpoint that is no longer needed loses its mark first and then its
files. Kept are the newest and the best.
"""

import shutil
from collections.abc import Collection
from pathlib import Path

from stepladder.core.io.files import atomic_file

_MARK = "complete"


class Checkpoints:
    """The checkpoints in a folder, as the trainer names them: `checkpoint-STEP`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def at(self, step: int) -> Path:
        """Where the checkpoint after so many updates is."""
        return self.folder / f"checkpoint-{step}"

    @property
    def complete(self) -> list[int]:
        """Steps of the checkpoints that were written to the end, the newest last."""
        return sorted(step for step in self._all() if (self.at(step) / _MARK).exists())

    def remove_incomplete(self) -> None:
        """Clear away what a killed process left."""
        for step in set(self._all()) - set(self.complete):
            shutil.rmtree(self.at(step))

    def keep(self, step: int, also: Collection[int] = ()) -> None:
        """Mark a checkpoint as complete. All others go, but for the steps in `also`."""
        with atomic_file(self.at(step) / _MARK) as file:
            file.write(f"{step}\n")
        for other in set(self._all()) - {step, *also}:
            (self.at(other) / _MARK).unlink(missing_ok=True)
            shutil.rmtree(self.at(other))

    def _all(self) -> list[int]:
        numbers = (path.name.removeprefix("checkpoint-") for path in self.folder.glob("checkpoint-*"))
        return [int(number) for number in numbers if number.isdecimal()]
