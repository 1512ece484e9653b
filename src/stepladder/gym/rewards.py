"""Rewards of the environment.

In: a `Transition`. Out: a number.

    outcome   F1 (or exact match) of the answer at the end of an episode; 0 without an answer and at all other steps
    process   the score of every step by a step scorer, between 0 and 1
    both      outcome + process_weight * process

The step scorer is any `StepScorer`: by default the gold judge (1 good, 0 faulty, 0.5 if the annotation cannot decide),
or a process reward model (the sigmoid of its logits).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.gym.transition import Transition
from stepladder.oracle.step_judge import GoldScorer

RewardKind = Literal["outcome", "process", "both"]
Metric = Literal["f1", "em"]


@dataclass(frozen=True, slots=True)
class Reward:
    """How transitions are rewarded."""

    kind: RewardKind = "outcome"
    metric: Metric = "f1"
    process_weight: float = 1.0

    @property
    def uses_answers(self) -> bool:
        """Whether questions need gold answers."""
        return self.kind != "process"

    @property
    def uses_steps(self) -> bool:
        """Whether steps are scored."""
        return self.kind != "outcome"

    def of(self, transition: Transition) -> float:
        """The reward of a transition; 0 for a failed one."""
        answer = transition.answer_score if self.uses_answers else None
        outcome = getattr(answer, self.metric) if answer is not None else 0.0
        weight = self.process_weight if self.kind == "both" else 1.0
        return float(outcome + weight * (transition.score or 0.0))


def open_scorer(scorer: Any) -> StepScorer:
    """The gold judge for None, the process reward model of a folder, or the given scorer."""
    if scorer is None:
        return GoldScorer()
    if isinstance(scorer, str | Path):
        from stepladder.judges.prm.reward_model import ProcessRewardModel  # imports torch

        return ProcessRewardModel.load(scorer)
    if missing := [name for name in ("score", "max_batch", "concurrency") if not hasattr(scorer, name)]:
        raise StepladderError(
            "scorer: expected the folder of a process reward model or a StepScorer, found "
            f"{scorer!r}, which has no {' and no '.join(missing)}"
        )
    return cast(StepScorer, scorer)
