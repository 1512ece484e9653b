"""Checkpoints of transformers' trainer that survive a kill at any moment.

The trainer writes a checkpoint file by file. When it is done, `keep` writes a marker file into the folder; a folder
without a marker is incomplete and removed at the next start. A checkpoint that is not needed any more loses its marker
first and then its files. The newest and the best checkpoints are kept.
"""

import shutil
from collections.abc import Collection
from pathlib import Path

from stepladder.core.io.files import atomic_file

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

    def remove_incomplete(self) -> None:
        """Remove what a killed process left."""
        for step in set(self._all()) - set(self.complete):
            shutil.rmtree(self.at(step))

    def keep(self, step: int, also: Collection[int] = ()) -> None:
        """Mark a checkpoint as complete and remove all others, except for the steps in `also`."""
        with atomic_file(self.at(step) / _MARKER) as file:
            file.write(f"{step}\n")
        for other in set(self._all()) - {step, *also}:
            (self.at(other) / _MARKER).unlink(missing_ok=True)
            shutil.rmtree(self.at(other))

    def _all(self) -> list[int]:
        numbers = (path.name.removeprefix("checkpoint-") for path in self.folder.glob("checkpoint-*"))
        return [int(number) for number in numbers if number.isdecimal()]
