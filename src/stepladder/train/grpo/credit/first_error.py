"""`first-error`: like `dual`, but steps after the first faulty one get no step advantage of their own.

What comes after an error often follows from it: a right question about a wrong sub-answer cannot find the answer. Such
steps are neither blamed nor praised, and are no part of the baseline; they keep the outcome advantage. A step is faulty
if its score is below 0.5, by the gold judge as by a reward model.
"""

from collections.abc import Sequence

from stepladder.core.step_scorer import sigmoid
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import AdvantageEstimator, EpisodeGroup, Floats, Need, always
from stepladder.train.grpo.credit.dual import outcome_and_steps

#: Scores below this are faulty.
_FAULTY = 0.5


def until_first_error(scores: Sequence[float | None]) -> list[float | None]:
    """Logits up to and including the first faulty step, None behind it. A step that is not judged is not faulty.

    >>> until_first_error([2.0, None, -1.0, 3.0])
    [2.0, None, -1.0, None]
    """
    faulty = (index for index, score in enumerate(scores) if score is not None and sigmoid(score) < _FAULTY)
    end = next(faulty, len(scores)) + 1
    return [*scores[:end], *[None] * (len(scores) - end)]


def _first_error(group: EpisodeGroup, settings: GRPOConfig) -> list[Floats]:
    assert group.evidence.step_scores is not None
    return outcome_and_steps(group, list(map(until_first_error, group.evidence.step_scores)), settings)


FIRST_ERROR = AdvantageEstimator(_first_error, always(Need.STEP_SCORES))
