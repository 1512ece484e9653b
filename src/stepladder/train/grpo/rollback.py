"""Where to go back to after an alarm: which checkpoints are kept for that, and which of them is taken.

In: checkpoints as they are written, and the curves. Out: one from before the trouble. Monitors notice trouble some
updates after it began, when newer checkpoints are there and one of them may even have the best dev score.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stepladder.train.grpo.monitors import Alarm, last_good
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.metrics_log import MetricsLog


class RollbackCheckpoints(Checkpoints):
    """Checkpoints of which some older ones are kept as well, five at most in all."""

    def __init__(self, folder: Path, curves: MetricsLog, window: int, passes: int) -> None:
        """`window`: updates with new episodes that guards take the mean of; every `passes` updates there are some."""
        super().__init__(folder)
        self.curves = curves
        self.window = window
        self.passes = passes

    def keep(self, step: int, also: Collection[int] = ()) -> None:
        """Keep also the newest from before the latest window, the oldest within, which is next, and that of F1's best.

        A fall of F1 is measured against its best window, which may be long ago.
        """
        whole, latest = self.complete, step - self.window * self.passes
        before = [other for other in whole if other < latest]
        within = [other for other in whole if other >= latest]
        at_best = [other for other in whole if other < self._end_of_best()]
        super().keep(step, [*also, *before[-1:], *within[:1], *at_best[-1:]])

    def _end_of_best(self) -> int:
        """The last update of the window of the highest F1, among those before the latest; 0 while there is none."""
        rows = [row for row in self.curves.updates if "f1" in row]
        if len(rows) < 2 * self.window:
            return 0
        means = sliding_window_view([row["f1"] for row in rows[: -self.window]], self.window).mean(axis=-1)
        best = len(means) - 1 - int(np.argmax(means[::-1]))  # the latest of equals
        return int(rows[best + self.window - 1]["step"])


def rollback_checkpoint(checkpoints: Checkpoints, curves: MetricsLog, alarms: Sequence[Alarm]) -> Path | None:
    """The best checkpoint from before the trouble began; None when the policy was at its best as it came."""
    good = last_good(curves.updates, alarms) or 0
    fitting = [step for step in checkpoints.complete if step <= good]
    scores = [(row["step"], row[curves.best_by]) for row in curves.rows if curves.best_by in row]

    def known(step: int) -> float:
        """Its score, or the last one before it: checkpoints are more frequent than scores."""
        return next((score for scored, score in reversed(scores) if scored <= step), 0.0)

    best = max([0, *fitting], key=lambda step: (known(step), step))
    return checkpoints.at(best) if best else None
