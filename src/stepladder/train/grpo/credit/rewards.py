"""Rewards of episodes and steps: for the answer, for the format, and for the score of a step."""

from collections.abc import Sequence

from stepladder.core.answer_metrics import score
from stepladder.core.step_scorer import sigmoid
from stepladder.core.trace import Step, StopReason, Trajectory
from stepladder.train.grpo.config import RewardConfig


def answer_reward(trajectory: Trajectory, settings: RewardConfig) -> float:
    """The reward of an episode for its answer."""
    f1 = score(trajectory).f1
    return settings.f1_weight * f1 if f1 >= settings.min_f1 else 0.0


def format_reward(trajectory: Trajectory, settings: RewardConfig) -> float:
    """The reward of an episode for keeping the format to the end."""
    kept = trajectory.stop is StopReason.ANSWERED and trajectory.is_strict  # however leniently it was played
    return settings.format_bonus if kept else -settings.format_bonus


def outcome_reward(trajectory: Trajectory, settings: RewardConfig) -> float:
    """The reward of an episode: for its answer, and for keeping the format to the end."""
    return answer_reward(trajectory, settings) + format_reward(trajectory, settings)


def step_format_reward(step: Step, settings: RewardConfig) -> float:
    """The reward of a step for keeping the format."""
    return settings.step_format_bonus if step.action.is_strict else -settings.step_format_bonus


def step_rewards(trajectory: Trajectory, scores: Sequence[float | None], settings: RewardConfig) -> list[float | None]:
    """One reward per step: the sigmoid of its score, and for keeping the format. None if it is not judged."""
    return [
        None if score is None else sigmoid(score) + step_format_reward(step, settings)
        for step, score in zip(trajectory.steps, scores, strict=True)
    ]
