"""`gain`: how much closer to the answer a step leads, by a potential of states (potential-based shaping).

    gain of step t         = potential(state after it) - potential(state before it)
    potential at the end   = the outcome reward, in the range of the potential

So the gains of an episode sum to its outcome less the potential of the question, whatever the potential says in
between: a step cannot earn anything that a later step does not have to pay back. Verdicts on steps, which `process`
sums, have no such limit: there an episode earns more by having more good steps, or by ending before the first bad one.

The end is (outcome reward - format bonus) / weight of F1: 1 for a right answer in the right format, 0 for a wrong one,
less for a broken format. If potentials ended in one of their own instead, the answer would not be rewarded.

Gains are not divided by the group's deviation: potentials have the same range in every group, so that small
differences stay small. The potential before a step is its baseline. Where potentials are far from the rewards that
episodes come to, all of a group may lose, or gain, by the same amount: `center_gains` subtracts the mean of the group
at the same step.
"""

from collections.abc import Sequence

import numpy as np

from stepladder.train.grpo.advantage import dual_advantages
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import AdvantageEstimator, EpisodeGroup, Floats, Need
from stepladder.train.grpo.credit.outcome import episode_advantages
from stepladder.train.grpo.credit.potentials import POTENTIALS, Values


def _gain(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    gains = step_gains(POTENTIALS[settings.potential].values(group), final_potentials(group, settings))
    if settings.center_gains:
        gains = centered_gains(gains)
    return dual_advantages(episode_advantages(group, settings), gains, settings.process_weight)


def centered_gains(gains: Sequence[Floats]) -> list[Floats]:
    """Gains relative to the mean of the group at the same step; as they are where only one episode has that step."""
    means = np.zeros(max(map(len, gains), default=0))
    for number in range(len(means)):
        same = [each[number] for each in gains if len(each) > number]
        means[number] = np.mean(same) if len(same) > 1 else 0.0
    return [each - means[: len(each)] for each in gains]


def final_potentials(group: EpisodeGroup, settings: GRPOConfig) -> list[float]:
    """The outcome rewards in the range of potentials. Normalized apart, the format has an advantage of its own."""
    rewards = settings.rewards
    if settings.normalize_rewards == "apart":
        return [reward / rewards.f1_weight for reward in group.answer_rewards]
    return [(reward - rewards.format_bonus) / rewards.f1_weight for reward in group.outcome_rewards]


def step_gains(values: Values, finals_G: Sequence[float]) -> list[Floats]:
    """The differences of the potentials of each episode, one per step; they sum to its last potential less its first.

    A state whose potential is not known has that of the one before it, so that the next known one gets the whole
    difference. The question alone, if its potential is not known, has the mean of the group's first known ones.
    """
    firsts = [next((each for each in own if each is not None), end) for own, end in zip(values, finals_G, strict=True)]
    start = float(np.mean(firsts)) if firsts else 0.0
    found = []
    for own, end in zip(values, finals_G, strict=True):
        filled = [start]
        for value in own:
            filled.append(filled[-1] if value is None else value)
        found.append(np.diff([*filled[1:], end]))
    return found


def _needs(settings: GRPOConfig) -> frozenset[Need]:
    return frozenset({POTENTIALS[settings.potential].needs})


GAIN = AdvantageEstimator(_gain, _needs)
