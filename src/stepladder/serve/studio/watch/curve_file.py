"""Learning curves of a training that may be under way: every numeric column of its metrics log, downsampled.

In: `curves.jsonl`. Out: the metrics, each with a series of training and one of dev questions. A series has at most
`MAX_POINTS` points, each the mean of as many neighbors: when it is full, neighbors are merged two by two. So the memory
does not depend on the length of the training, and every row is read once.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.core.config import Config
from stepladder.reporting.report.training_curves import (
    is_metric,
    is_secondary,
    metric_name,
    metric_of,
    note_on,
)
from stepladder.serve.studio.watch.appended_file import AppendedFile

#: Points of a series, at most; even.
MAX_POINTS = 320
#: Columns of a log, at most: more are not drawn.
_MAX_SERIES = 200


@dataclass(slots=True)
class Series:
    """The values of a column by update, downsampled."""

    #: Sums of the updates and of the values of each point; the last point may be of fewer rows.
    steps: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    #: Rows per point, and rows in the last one.
    per_point: int = 1
    in_last: int = 0
    #: Rows whose value is not a finite number.
    not_finite: int = 0
    low: float = math.inf
    high: float = -math.inf

    def add(self, step: float, value: float) -> None:
        """Add the value of the next row."""
        if not math.isfinite(value):
            self.not_finite += 1
            return
        self.low, self.high = min(self.low, value), max(self.high, value)
        if not self.values or self.in_last == self.per_point:
            if len(self.values) == MAX_POINTS:
                self._merge()
            self.steps.append(0.0)
            self.values.append(0.0)
            self.in_last = 0
        self.steps[-1] += step
        self.values[-1] += value
        self.in_last += 1

    def _merge(self) -> None:
        """Halve the number of points. All of them are full."""
        for sums in (self.steps, self.values):
            sums[:] = [one + other for one, other in zip(sums[::2], sums[1::2], strict=True)]
        self.per_point *= 2

    @property
    def rows(self) -> int:
        """Number of rows that are drawn."""
        return self.per_point * (len(self.values) - 1) + self.in_last if self.values else 0

    def points(self) -> list[tuple[float, float]]:
        """The points: mean update and mean value."""
        counts = [self.per_point] * (len(self.values) - 1) + [self.in_last]
        return [
            (round(step / count, 2), float(f"{value / count:.6g}"))
            for step, value, count in zip(self.steps, self.values, counts)
        ]


class CurveFile:
    """The curves of one stage."""

    def __init__(self, path: Path) -> None:
        self._file = AppendedFile(path)
        #: By metric: training, dev questions.
        self.metrics: dict[str, tuple[Series, Series]] = {}
        #: The newest update and epoch.
        self.step: int = 0
        self.epoch: float | None = None
        #: What is wrong with the file; empty if nothing is.
        self.problem = ""

    def update(self) -> bool:
        """Read what is new. Returns whether anything is."""
        if not self._file.changed():
            return False
        try:
            restarted, lines = self._file.read()
            if restarted:
                self.metrics, self.step, self.epoch = {}, 0, None
            self.problem = ""
            self._read(lines)
        except (OSError, ValueError) as error:
            self.problem = str(error)
        return True

    def _read(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                step = row["step"]
                if not isinstance(row, dict) or not isinstance(step, int):
                    raise TypeError
            except (ValueError, TypeError, KeyError, RecursionError):
                self.problem = "a row is damaged and left out"
                continue
            self._add(step, row)

    def _add(self, step: int, row: dict[str, Any]) -> None:
        self.step = max(self.step, step)
        if isinstance(row.get("epoch"), int | float):
            self.epoch = float(row["epoch"])
        for column, value in row.items():
            if not is_metric(column, value):
                continue
            name, dev = metric_of(column)
            if (both := self.metrics.get(name)) is None:
                if len(self.metrics) == _MAX_SERIES:
                    continue
                both = self.metrics[name] = (Series(), Series())
            both[dev].add(float(step), float(value))

    def plain(self, settings: Config) -> dict[str, Any]:
        """Everything that is drawn, as JSON-compatible data. `settings`: those of the stage."""
        metrics, constants = [], []
        for name, (train, dev) in self.metrics.items():
            low, high = min(train.low, dev.low), max(train.high, dev.high)
            if low == high and not (train.not_finite or dev.not_finite):
                constants.append([metric_name(name), float(f"{low:.3g}"), train.rows + dev.rows > 1])
                continue
            metrics.append(
                {
                    "id": name,
                    "name": metric_name(name),
                    "note": note_on(name, settings) if train.rows and dev.rows else "",
                    "secondary": is_secondary(name),
                    "train": train.points(),
                    "dev": dev.points(),
                    "not_finite": train.not_finite + dev.not_finite,
                }
            )
        return {"updates": self.step, "metrics": metrics, "constants": constants, "problem": self.problem}
