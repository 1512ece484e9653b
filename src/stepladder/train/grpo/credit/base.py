"""The interface of credit assignment: what an estimator reads, and what it returns.

In: the episodes of one question (`EpisodeGroup`) with the `Evidence` that the estimator asked for. Out: one advantage
per step (`CreditedEpisode`). Estimators are pure functions: rollouts fetch the evidence (`train/grpo/evidence.py`), so
an estimator needs no model, and can be tried on stored episodes. A new one is a file with an `AdvantageEstimator`, and
a line in `train/grpo/config.py`.

A state is a prefix of an episode. State t of an episode with T steps is what the policy reads before step t; the last
step has no state behind it, since the episode is over and its reward known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from stepladder.core.trace import Trajectory

if TYPE_CHECKING:
    from stepladder.train.grpo.config import GRPOConfig

Floats = NDArray[np.float64]


class Need(StrEnum):
    """What an estimator may need. All but `GOLD_PASSAGES`, which questions have, are fields of `Evidence`."""

    STEP_SCORES = "step_scores"
    NODES = "nodes"
    DISTANCES = "distances"
    ANSWER_LOGPS = "answer_logps"
    CONTINUATIONS = "continuations"
    GOLD_PASSAGES = "gold_passages"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a group beside its episodes. None: not fetched, because the estimator does not need it."""

    #: Per episode one logit per step, None for a step that is not judged.
    step_scores: Sequence[Sequence[float | None]] | None = None
    #: Per episode one node id per step. Steps with the same id are one step, which several episodes share.
    nodes: Sequence[Sequence[int]] | None = None
    #: By entity (the id of its passage) how many facts are between it and each part of the answer; None: no path.
    distances: Mapping[str, Sequence[int | None]] | None = None
    #: Per episode and state the mean log-prob of the gold answer's tokens under the policy; None where not known.
    answer_logps: Sequence[Sequence[float | None]] | None = None
    #: Per episode and state episodes that continue from it; none where not known.
    continuations: Sequence[Sequence[Sequence[Trajectory]]] | None = None


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one question, their rewards, and the evidence."""

    episodes: Sequence[Trajectory]
    #: One per episode: the sum of the next two.
    outcome_rewards: Sequence[float]
    answer_rewards: Sequence[float]
    format_rewards: Sequence[float]
    evidence: Evidence = Evidence()

    def broadcast(self, advantages_G: Floats) -> list[Floats]:
        """One value per episode, repeated for each of its steps."""
        return [np.full(len(each.steps), one) for each, one in zip(self.episodes, advantages_G, strict=True)]


def nothing(settings: "GRPOConfig") -> frozenset[Need]:  # noqa: ARG001
    """The needs of an estimator that reads episodes alone."""
    return frozenset()


def always(*needs: Need) -> Callable[["GRPOConfig"], frozenset[Need]]:
    """The needs of an estimator that do not depend on its settings."""
    return lambda _: frozenset(needs)


@dataclass(frozen=True, slots=True)
class AdvantageEstimator:
    """A pure function from a group to one advantage per step of each episode."""

    advantages: Callable[[EpisodeGroup, "GRPOConfig"], Sequence[Floats]]
    #: The evidence that it needs. Nothing else is fetched.
    needs: Callable[["GRPOConfig"], frozenset[Need]] = nothing
    #: Per episode which steps are in the loss; None: all.
    loss_masks: Callable[[EpisodeGroup, "GRPOConfig"], Sequence[Sequence[bool]]] | None = None


@dataclass(frozen=True, slots=True)
class CreditedEpisode:
    """One episode with its credit."""

    trajectory: Trajectory
    #: Of the outcome.
    reward: float
    #: One per step.
    advantages: tuple[float, ...]
    #: One entry per step: false if another episode of the tree has the same step in the loss.
    loss_mask: tuple[bool, ...]

    @property
    def has_signal(self) -> bool:
        """Whether any step in the loss has an advantage other than 0."""
        return any(advantage and masked for advantage, masked in zip(self.advantages, self.loss_mask))
