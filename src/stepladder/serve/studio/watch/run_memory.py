"""What is remembered of a run between two looks at it, so that a look only reads what has changed.

In: the files of a run. Out: its recipe; what each finished stage cost; what a stage that is not finished has done so
far, in words and as a share, such as "update 34, epoch 2.1 of 7" and 0.3. Only the end of a metrics log is read, and of
a file of trees what is new.
"""

import json
import os
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.explore.tree_store import new_trees
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.stage_summary import StageCost
from stepladder.pipeline.tree_search import FILE
from stepladder.reporting.report.cost import cost_of
from stepladder.reporting.report.run_data import RunData
from stepladder.reporting.report.training_curves import CURVES

#: Bytes at the end of a metrics log that hold its last rows.
_TAIL = 1 << 16


class RunMemory:
    """One run."""

    def __init__(self) -> None:
        self._trees: dict[Path, TreeCount] = {}
        self._recipe: tuple[tuple[int, int], Recipe] | None = None
        self._costs: dict[Path, tuple[tuple[int, int], StageCost]] = {}

    def recipe(self, run: RunFolder) -> Recipe:
        """The recipe of the last session."""
        path = run.path / "recipe.yaml"
        version = _version(path) if path.exists() else (0, 0)
        if self._recipe is None or self._recipe[0] != version:
            self._recipe = version, run.recipe()
        return self._recipe[1]

    def cost(self, run: RunData, stage: StageRecord) -> StageCost:
        """What a finished stage counted."""
        path = run.folder / stage.name / "stage.json"
        version = _version(path)
        if path not in self._costs or self._costs[path][0] != version:
            self._costs[path] = version, cost_of(run, stage)
        return self._costs[path][1]

    def progress(self, folder: Path, stage: Stage) -> tuple[str, float | None]:
        """What a stage that is not finished has done: in words, and as a share if the end is known."""
        if (curves := folder / CURVES).is_file():
            return _training(last_row(curves), stage)
        if (trees := folder / FILE).is_file():
            count = self._trees.setdefault(trees, TreeCount(trees)).update()
            total = getattr(stage.settings, "questions", None)
            if not isinstance(total, int) or total <= 0:
                return f"{count:,} trees", None
            return f"{count:,} trees of {total:,}", min(count / total, 1.0)
        return "", None


def _version(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _training(row: dict[str, Any], stage: Stage) -> tuple[str, float | None]:
    step, epoch = row.get("step"), row.get("epoch")
    if not isinstance(step, int):
        return "", None
    epochs = getattr(stage.settings, "num_train_epochs", None)
    if not isinstance(epoch, int | float) or not isinstance(epochs, int | float) or epochs <= 0:
        return f"update {step:,}", None
    return f"update {step:,}, epoch {epoch:.2g} of {epochs:g}", min(epoch / epochs, 1.0)


def last_row(path: Path) -> dict[str, Any]:
    """The last row of an update in a metrics log; empty if there is none."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _TAIL, 0))
        lines = file.read().split(b"\n")
    for line in reversed(lines[:-1]):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "epoch" in row:
            return row
    return {}


class TreeCount:
    """The number of trees in a file that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count, self._end, self._inode = 0, 0, 0

    def update(self) -> int:
        """The number of trees now."""
        try:
            found = self._path.stat()
            if found.st_ino != self._inode or found.st_size < self._end:
                self._count, self._end, self._inode = 0, 0, found.st_ino
            for _, end in new_trees(self._path, self._end):
                self._count, self._end = self._count + 1, end
        except (OSError, StepladderError):  # it is said where the trees are shown
            pass
        return self._count
