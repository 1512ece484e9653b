"""Logits as probabilities: a process reward model as a scorer whose scores are between 0 and 1."""

import math
from collections.abc import Sequence

from stepladder.core.trace import Trajectory
from stepladder.driver import Scorer


def sigmoid(logit: float) -> float:
    """A score between 0 and 1."""
    return 1 / (1 + math.exp(-logit)) if logit > -500 else 0.0


class Chances:
    """The same scorer; what it says goes through a sigmoid."""

    def __init__(self, model: Scorer) -> None:
        self.model = model
        self.max_batch, self.concurrency = model.max_batch, model.concurrency

    def score(self, trajectories: Sequence[Trajectory]) -> list[tuple[float, ...] | Exception]:
        """For each trajectory, one score a step."""
        return [
            logits if isinstance(logits, Exception) else tuple(map(sigmoid, logits))
            for logits in self.model.score(trajectories)
        ]
