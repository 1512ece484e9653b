"""Credit the episodes of one question with the estimator that the settings name."""

from collections.abc import Sequence

from stepladder.core.trace import Trajectory
from stepladder.train.grpo.config import ESTIMATORS, GRPOConfig
from stepladder.train.grpo.credit.base import CreditedEpisode, EpisodeGroup, Evidence, Need
from stepladder.train.grpo.credit.rewards import answer_reward, format_reward

#: Smaller advantages are rounding: equal rewards are no signal.
_ROUNDING = 1e-9


def credit_group(
    group: Sequence[Trajectory], settings: GRPOConfig, evidence: Evidence | None = None
) -> list[CreditedEpisode]:
    """Advantages of every step of some episodes of one question. `evidence`: at least what `settings.needs` names."""
    evidence = evidence or Evidence()
    for need in sorted(settings.needs - {Need.GOLD_PASSAGES}):
        if getattr(evidence, need) is None:
            raise ValueError(f"mode '{settings.mode}' needs the evidence {need.value}")
    estimator = ESTIMATORS.get(settings.mode)
    answers = [answer_reward(each, settings.rewards) for each in group]
    formats = [format_reward(each, settings.rewards) for each in group]
    rewards = [answer + kept for answer, kept in zip(answers, formats)]
    credited = EpisodeGroup(group, rewards, answers, formats, evidence)
    advantages = estimator.advantages(credited, settings)
    masks = (
        [[True] * len(each.steps) for each in group]
        if estimator.loss_masks is None
        else estimator.loss_masks(credited, settings)
    )
    return [
        CreditedEpisode(trajectory, reward, tuple(map(_without_rounding, own)), tuple(mask))
        for trajectory, reward, own, mask in zip(group, rewards, advantages, masks, strict=True)
    ]


def _without_rounding(advantage: float) -> float:
    return float(advantage) if abs(advantage) > _ROUNDING else 0.0
