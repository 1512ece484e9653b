"""The process reward model as a step scorer."""

from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.judges.base import ScorerOptions, ScorerSpec


def _make(options: ScorerOptions) -> StepScorer:
    from stepladder.judges.prm.reward_model import ProcessRewardModel  # imports torch and transformers

    if options.prm is None:
        raise StepladderError("no reward model given: train one, or name its folder")
    return ProcessRewardModel.load(
        options.prm, device=options.device, dtype=options.dtype, retokenize=options.retokenize
    )


SCORERS = {"prm": ScorerSpec(_make, "a process reward model", uses_prm=True)}
