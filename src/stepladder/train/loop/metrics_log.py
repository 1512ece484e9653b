"""The curves of a training run: one row an update (loss, learning rate, ...), one a dev score; `curves.jsonl`.

In: rows, as training goes. Out: the file, always whole: rewritten now and then, and before every checkpoint. A run that
resumes drops the rows beyond its checkpoint, so that no update is in the file twice and none is missing.
"""

import json
import time
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file

#: Seconds between two writings of the file while training goes on.
SAVE_EVERY = 5.0

Row = dict[str, Any]


class MetricsLog:
    """The rows so far. Every row has its `step`: the number of updates made."""

    def __init__(self, path: Path, upto: int = 0, *, best_by: str = "dev_f1", writes: bool = True) -> None:
        """Go on from the rows in the file up to and including step `upto`. Of several processes only one `writes`.

        `best_by` names the dev score that decides which row is the best; a loss is the better the lower it is.
        """
        self.path = path
        self.best_by = best_by
        self.writes = writes
        self.rows: list[Row] = [row for row in read_metrics(path) if row["step"] <= upto] if path.exists() else []
        self._saved = time.monotonic()

    def add(self, **row: Any) -> None:
        """One more row; the file follows soon."""
        self.rows.append(row)
        if time.monotonic() - self._saved >= SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Bring the file up to date."""
        if not self.writes:
            return
        with atomic_file(self.path, what="curves") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.rows)
        self._saved = time.monotonic()

    @property
    def updates(self) -> list[Row]:
        """Rows of updates."""
        return [row for row in self.rows if "loss" in row]

    @property
    def best(self) -> Row | None:
        """The row of the best dev score, the later one of equals; None when there was no dev score."""
        scored = [row for row in self.rows if self.best_by in row]
        sign = -1 if self.best_by.endswith("loss") else 1
        return max(scored, key=lambda row: (sign * row[self.best_by], row["step"]), default=None)


def read_metrics(path: Path) -> list[Row]:
    """The rows of a curves file."""
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise StepladderError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise StepladderError(f"{path}:{number}: a row of curves needs its 'step'")
        rows.append(row)
    return rows
