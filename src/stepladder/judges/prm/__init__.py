"""The process reward model as a step scorer."""

import json
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.judges.base import ScorerOptions, ScorerSpec

#: The key of a reward model's config.json that says how queries are scored; it is there only if it is true.
AFTER_RETRIEVAL = "stepladder_score_after_retrieval"
#: The key that says how final answers are scored; it is there only if they are scored by the worst step so far.
ANSWER_SCORE = "stepladder_answer_score"


def scores_after_retrieval(folder: str | Path) -> bool:
    """Whether the reward model in a folder scores a query with the passages that it found."""
    file = Path(folder).expanduser() / "config.json"
    return file.is_file() and json.loads(file.read_text(encoding="utf-8")).get(AFTER_RETRIEVAL) is True


def _make(options: ScorerOptions) -> StepScorer:
    from stepladder.judges.prm.reward_model import ProcessRewardModel  # imports torch and transformers

    if options.prm is None:
        raise StepladderError("no reward model given: train one, or name its folder")
    return ProcessRewardModel.load(
        options.prm, device=options.device, dtype=options.dtype, retokenize=options.retokenize
    )


SCORERS = {"prm": ScorerSpec(_make, "a process reward model", uses_prm=True)}
