"""`process`: every step by its own score, relative to the steps of the group."""

from collections.abc import Sequence

import numpy as np

from stepladder.core.step_scorer import sigmoid
from stepladder.core.trace import ActionKind, Step, Trajectory
from stepladder.train.grpo.advantage import process_advantages, process_deviations
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import AdvantageEstimator, EpisodeGroup, Floats, Need, always
from stepladder.train.grpo.credit.rewards import step_format_reward

#: Per episode one logit per step, None for a step without an advantage of its own.
StepLogits = Sequence[Sequence[float | None]]


def step_advantages(group: EpisodeGroup, scores: StepLogits, settings: GRPOConfig) -> list[Floats]:
    """The advantages of steps by their scores; 0 for steps that are not graded, or not judged by the scorer.

    The reward of a step's format is added to its score, or, normalized apart, contributes with a fixed weight.
    """
    episodes = group.episodes
    graded = [_graded(*each, settings) for each in zip(episodes, scores, strict=True)]
    tokens = [[len(each.steps[index].written.tokens) for index in own] for each, own in zip(episodes, graded)]
    labels = [[_label(index, each.steps[index]) for index in own] for each, own in zip(episodes, graded)]
    quality = [list(own.values()) for own in graded]
    formats = [
        [step_format_reward(each.steps[index], settings.rewards) for index in own]
        for each, own in zip(episodes, graded)
    ]
    apart = settings.normalize_rewards == "apart"
    rewards = quality if apart else [list(map(sum, zip(*each))) for each in zip(quality, formats)]
    found = process_advantages(
        rewards, tokens, settings.normalize, labels, min_std=settings.min_std, ddof=settings.ddof
    )
    if apart:
        kept = process_deviations(formats, tokens, settings.normalize, labels)
        found = [one + settings.format_weight * other for one, other in zip(found, kept)]
    all_steps = [np.zeros(len(each.steps)) for each in episodes]
    for advantages, own, some in zip(all_steps, graded, found):
        advantages[list(own)] = some
    return all_steps


def _graded(trajectory: Trajectory, scores: Sequence[float | None], settings: GRPOConfig) -> dict[int, float]:
    """The scores between 0 and 1 of the steps that are graded, by their index."""
    return {
        index: sigmoid(score)
        for index, (step, score) in enumerate(zip(trajectory.steps, scores, strict=True))
        if score is not None and (settings.grade_answers or step.action.kind is not ActionKind.ANSWER)
    }


def _label(index: int, step: Step) -> tuple[int, str] | None:
    """The peers of a step: those of its kind at its position. A malformed step is compared with all."""
    return None if step.action.kind is ActionKind.MALFORMED else (index, step.action.kind.value)


def _process(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    assert group.evidence.step_scores is not None
    return step_advantages(group, group.evidence.step_scores, settings)


PROCESS = AdvantageEstimator(_process, always(Need.STEP_SCORES))
