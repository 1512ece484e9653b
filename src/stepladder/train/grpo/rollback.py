"""Rollback after an alarm: which checkpoints are kept for it, and which of them is selected.

In: checkpoints as they are written, and the metrics log. Out: a checkpoint from before the failure. Monitors detect a
failure some updates after it started, when there are newer checkpoints, one of which may have the best dev score.
"""

from collections.abc import Collection, Sequence
from pathlib import Path

from stepladder.train.grpo.monitors import Alarm, best_window, last_good
from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.metrics_log import MetricsLog


class RollbackCheckpoints(Checkpoints):
    """Keeps some older checkpoints as well, at most five in total."""

    def __init__(self, folder: Path, metrics: MetricsLog, window: int, num_iterations: int) -> None:
        """`window`: of the monitors, in updates with new episodes, which are every `num_iterations`."""
        super().__init__(folder)
        self.metrics = metrics
        self.window = window
        self.num_iterations = num_iterations

    def keep(self, step: int, also: Collection[int] = ()) -> None:
        """Keep also the newest from before the latest window, the oldest within it, and that of F1's best window.

        A drop of F1 is measured against its best window, which may be long ago.
        """
        complete, latest = self.complete, step - self.window * self.num_iterations
        before = [other for other in complete if other < latest]
        within = [other for other in complete if other >= latest]
        at_best = [other for other in complete if other < self._end_of_best()]
        super().keep(step, [*also, *before[-1:], *within[:1], *at_best[-1:]])

    def _end_of_best(self) -> int:
        """The last update of the window with the highest F1, among those before the latest; 0 if there is none."""
        rows = [row for row in self.metrics.updates if "f1" in row]
        if len(rows) < 2 * self.window:
            return 0
        best = best_window([row["f1"] for row in rows[: -self.window]], self.window)
        return int(rows[best + self.window - 1]["step"])


def rollback_checkpoint(checkpoints: Checkpoints, metrics: MetricsLog, alarms: Sequence[Alarm]) -> Path | None:
    """The best checkpoint from before the failure; None if the initial policy was the best."""
    good = last_good(metrics.updates, alarms) or 0
    candidates = [step for step in checkpoints.complete if step <= good]
    scores = [(row["step"], row[metrics.best_by]) for row in metrics.rows if metrics.best_by in row]

    def score_of(step: int) -> float:
        """Its dev score, or the last one before it: checkpoints are more frequent than evaluations."""
        return next((score for scored, score in reversed(scores) if scored <= step), 0.0)

    best = max([0, *candidates], key=lambda step: (score_of(step), step))
    return checkpoints.at(best) if best else None
