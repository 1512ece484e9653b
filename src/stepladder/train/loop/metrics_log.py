"""The metrics log of a training run, `curves.jsonl`: one row per update (loss, learning rate, ...) and per evaluation.

In: rows during training. Out: the file, always complete: rewritten every few seconds and before every checkpoint. A
resumed run drops the rows after its checkpoint, so that every update is in the file exactly once.
"""

import json
import time
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.io.jsonl import read_objects

#: Seconds between two writes of the file during training.
SAVE_EVERY = 5.0

Row = dict[str, Any]


class MetricsLog:
    """The rows so far. Every row has its `step`: the number of updates."""

    def __init__(self, path: Path, last_step: int = 0, *, best_by: str = "dev_f1", is_writer: bool = True) -> None:
        """Continue from the rows in the file up to and including `last_step`. Of several processes one `is_writer`.

        `best_by` is the metric that selects the best row; for a loss, lower is better.
        """
        self.path = path
        self.best_by = best_by
        self.is_writer = is_writer
        self.rows: list[Row] = [row for row in read_metrics(path) if row["step"] <= last_step] if path.exists() else []
        self._saved = time.monotonic()

    def add(self, **row: Any) -> None:
        """Append a row; the file is written soon after."""
        self.rows.append(row)
        if time.monotonic() - self._saved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file."""
        if not self.is_writer:
            return
        with atomic_file(self.path, what="metrics log") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)
        self._saved = time.monotonic()

    @property
    def updates(self) -> list[Row]:
        """The rows of updates."""
        return [row for row in self.rows if "loss" in row]

    @property
    def best(self) -> Row | None:
        """The row with the best dev score, the latest of equals; None without dev scores."""
        scored = [row for row in self.rows if self.best_by in row]
        sign = -1 if self.best_by.endswith("loss") else 1
        return max(scored, key=lambda row: (sign * row[self.best_by], row["step"]), default=None)


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics log."""
    lines = list(read_objects(path, StepladderError))
    for line in lines:
        line.checked("step", line.data.get("step"), int, "the number of an update")
    return [line.data for line in lines]
