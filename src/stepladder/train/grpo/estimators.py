"""Advantage estimators by name, the values of `mode`. A new one is a file with an `AdvantageEstimator` and a line here.

In: the episodes of one question with their rewards. Out: one advantage per step of each episode. `tree` is not listed:
it changes how episodes are sampled, too (`credit.credit_tree`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepladder.core.registry import Registry
from stepladder.core.trace import Trajectory

if TYPE_CHECKING:
    from stepladder.train.grpo.advantage import Floats
    from stepladder.train.grpo.config import GRPOConfig


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one question and their rewards."""

    episodes: Sequence[Trajectory]
    #: One per episode.
    outcome_rewards: Sequence[float]
    #: Per episode one logit per step; None unless the estimator needs scores.
    step_scores: Sequence[Sequence[float]] | None


@dataclass(frozen=True, slots=True)
class AdvantageEstimator:
    """A pure function from a group to one advantage per step of each episode."""

    advantages: "Callable[[EpisodeGroup, GRPOConfig], Sequence[Floats]]"
    #: Whether it needs a step scorer.
    needs_scores: bool = False


ESTIMATORS: Registry[AdvantageEstimator] = Registry(
    "mode",
    {
        "dual": ("stepladder.train.grpo.credit:DUAL", "outcome and step advantages (ProRAG)"),
        "outcome": ("stepladder.train.grpo.credit:OUTCOME", "the answer alone (Search-R1)"),
        "process": ("stepladder.train.grpo.credit:PROCESS", "the steps alone"),
    },
)
