"""`outcome`: the answer alone, relative to the group (GRPO, Search-R1). All steps of an episode get the same."""

import numpy as np

from stepladder.train.grpo.advantage import outcome_advantages
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import AdvantageEstimator, EpisodeGroup, Floats


def episode_advantages(group: EpisodeGroup, settings: GRPOConfig) -> Floats:
    """One advantage per episode, with the weight of the outcome.

    Normalized together, the format reward is part of the outcome: in a group that differs in format alone it is scaled
    to the same deviation as answers. Apart, only answers are divided by their deviation; the format reward has a fixed
    weight, relative to the mean of the group.
    """
    together = settings.normalize_rewards == "together"
    rewards_G = group.outcome_rewards if together else group.answer_rewards
    found: Floats = settings.outcome_weight * outcome_advantages(rewards_G, settings.ddof)
    if together:
        return found
    formats_G = np.asarray(group.format_rewards, dtype=np.float64)
    found += settings.format_weight * (formats_G - formats_G.mean())
    return found


def _outcome(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    return group.broadcast(episode_advantages(group, settings))


OUTCOME = AdvantageEstimator(_outcome)
