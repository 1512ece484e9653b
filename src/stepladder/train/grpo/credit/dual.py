"""`dual`: the outcome of the episode, and the score of the step beside it (ProRAG)."""

from stepladder.train.grpo.advantage import dual_advantages
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import AdvantageEstimator, EpisodeGroup, Floats, Need, always
from stepladder.train.grpo.credit.outcome import episode_advantages
from stepladder.train.grpo.credit.process import StepLogits, step_advantages


def outcome_and_steps(group: EpisodeGroup, scores: StepLogits, settings: GRPOConfig) -> list[Floats]:
    """The outcome advantage of the episode plus `process_weight` times the step's own."""
    steps = step_advantages(group, scores, settings)
    return dual_advantages(episode_advantages(group, settings), steps, settings.process_weight)


def _dual(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    assert group.evidence.step_scores is not None
    return outcome_and_steps(group, group.evidence.step_scores, settings)


DUAL = AdvantageEstimator(_dual, always(Need.STEP_SCORES))
