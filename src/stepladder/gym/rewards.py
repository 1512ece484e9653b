"""What a step of the environment earns.

In: a `Turn`. Out: a number.

    outcome   at the end, F1 (or exact match) of the answer; 0 without an answer, and at every step before
    process   at every step, what the scorer says of it, between 0 and 1
    both      outcome + process_weight * process

Scorers are anything that answers `driver.Scorer`: by default the gold judge (1 good, 0 faulty, 0.5 where the question's
annotation cannot tell). The logits of a process reward model are brought between 0 and 1 by a sigmoid, as in RL.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stepladder.core.errors import StepladderError
from stepladder.driver import Scorer
from stepladder.gym.turn import Turn
from stepladder.judges.sigmoid_scorer import Chances
from stepladder.oracle.step_judge import GoldScorer

RewardKind = Literal["outcome", "process", "both"]
Metric = Literal["f1", "em"]


@dataclass(frozen=True, slots=True)
class Reward:
    """How turns are rewarded."""

    kind: RewardKind = "outcome"
    metric: Metric = "f1"
    process_weight: float = 1.0

    @property
    def counts_answers(self) -> bool:
        """Whether questions need accepted answers."""
        return self.kind != "process"

    @property
    def counts_steps(self) -> bool:
        """Whether steps have to be scored."""
        return self.kind != "outcome"

    def of(self, turn: Turn) -> float:
        """What a turn earned. One that failed earned nothing."""
        answer = turn.answer_score if self.counts_answers else None
        outcome = getattr(answer, self.metric) if answer is not None else 0.0
        weight = self.process_weight if self.kind == "both" else 1.0
        return float(outcome + weight * (turn.score or 0.0))


def open_scorer(scorer: Any) -> Scorer:
    """The gold judge for None, the reward model in a folder for its path, or the scorer that was given."""
    if scorer is None:
        return GoldScorer()
    if isinstance(scorer, str | Path):
        from stepladder.judges.prm.reward_model import ProcessRewardModel  # brings torch

        return Chances(ProcessRewardModel.load(scorer))
    if missing := [name for name in ("score", "max_batch", "concurrency") if not hasattr(scorer, name)]:
        raise StepladderError(
            "scorer: expected the folder of a process reward model or a scorer as the driver takes it, found "
            f"{scorer!r}, which has no {' and no '.join(missing)}"
        )
    return Chances(scorer) if _gives_logits(scorer) else scorer


def _gives_logits(scorer: object) -> bool:
    """Whether a scorer is a process reward model. Whoever has one has imported its module."""
    module = sys.modules.get("stepladder.judges.prm.reward_model")
    return module is not None and isinstance(scorer, module.ProcessRewardModel)
