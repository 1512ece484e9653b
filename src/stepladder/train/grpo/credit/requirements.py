"""What an estimator needs of the questions, checked before anything is trained.

In: questions and settings. Out: nothing, or an error that names what is missing and the estimators that would work.
"""

from collections.abc import Callable, Sequence

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Question
from stepladder.data.atlas.entity_graph import is_from_atlas
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.grpo.credit.base import Need

#: What a question must have for some evidence.
_HAS: dict[Need, tuple[str, Callable[[Question], bool]]] = {
    Need.GOLD_PASSAGES: ("gold passages", lambda question: bool(question.gold_passages)),
    Need.DISTANCES: ("a place in Atlas's graph of facts", is_from_atlas),
}


def check_questions(questions: Sequence[Question], settings: GRPOConfig) -> None:
    """Raise if the estimator of the settings needs what these questions lack.

    The gold judge needs some questions with a decomposition, since it leaves the others unjudged. Every question must
    have what a potential is computed from: without it the last step of an episode would get all credit.
    """
    if settings.scores_steps and settings.scorer == "gold" and not _have_decompositions(questions):
        raise StepladderError(
            f"scorer: gold needs questions with a gold decomposition, and none of {len(questions):,} has one. "
            f"{_working(questions)}"
        )
    for need in sorted(settings.needs & _HAS.keys()):
        what, has = _HAS[need]
        lacking = [each for each in questions if not has(each)]
        if lacking:
            raise StepladderError(
                f"potential: {settings.potential} needs {what}, which {len(lacking):,} of {len(questions):,} questions "
                f"do not have, such as {lacking[0].id}. {_working(questions)}"
            )


def _have_decompositions(questions: Sequence[Question]) -> bool:
    return any(each.hops for each in questions)


def _working(questions: Sequence[Question]) -> str:
    """The estimators that would work with these questions."""
    potentials = ["likelihood", "monte-carlo", "agreement"]
    potentials += ["recall"] if all(map(_HAS[Need.GOLD_PASSAGES][1], questions)) else []
    potentials += ["graph"] if all(map(_HAS[Need.DISTANCES][1], questions)) else []
    gold = " or scorer: gold" if _have_decompositions(questions) else ""
    return (
        f"With these questions work: mode outcome and tree; gain with potential {', '.join(potentials)}; with a reward "
        f"model{gold} also dual, process and first-error; with a reward model gain with potential prm"
    )
