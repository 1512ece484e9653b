"""What a step of the environment earns.

In: a `Turn`. Out: a number.

    outcome   at the end, F1 (or exact match) of the answer; 0 without an answer, and at every step before
    process   at every step, what the scorer says of it, between 0 and 1
    both      outcome + process_weight * process

Any `StepScorer` gives the process reward: by default the gold judge (1 good, 0 faulty, 0.5 where the question's
annotation cannot tell), or a process reward model (the sigmoid of its logits).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.gym.turn import Turn
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


def open_scorer(scorer: Any) -> StepScorer:
    """The gold judge for None, the reward model in a folder for its path, or the scorer that was given."""
    if scorer is None:
        return GoldScorer()
    if isinstance(scorer, str | Path):
        from stepladder.judges.prm.reward_model import ProcessRewardModel  # brings torch

        return ProcessRewardModel.load(scorer)
    if missing := [name for name in ("score", "max_batch", "concurrency") if not hasattr(scorer, name)]:
        raise StepladderError(
            "scorer: expected the folder of a process reward model or a scorer as the driver takes it, found "
            f"{scorer!r}, which has no {' and no '.join(missing)}"
        )
    return cast(StepScorer, scorer)
