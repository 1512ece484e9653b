"""Answer metrics (EM, F1) and episode metrics.

In: a prediction and the accepted answers, or a finished `Trajectory`. Out: numbers. `score` returns all metrics of one
question as a `QuestionScore`; means, intervals and tests over questions are in evaluation/statistics.py. The metrics of
texts are in questions/answer_text.py, those of choices, lists, numbers, yes and no in questions/answer_kinds.py:
`score_question` uses the one that fits the question.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from pydantic import ConfigDict

from stepladder.core.questions.answer_kinds import score_question as score_question
from stepladder.core.questions.answer_text import (
    AnswerScore as AnswerScore,
    covers as covers,
    normalize as normalize,
    score_answer as score_answer,
    token_overlap as token_overlap,
)
from stepladder.core.questions.gold_matching import gold_found
from stepladder.core.questions.question import AnswerKind
from stepladder.core.trace import Passage, Question, StopReason, Trajectory


class Miss(StrEnum):
    """Why a question was not answered exactly."""

    FAILED = "failed"  # the episode failed or was cancelled: says nothing about the policy
    NO_ANSWER = "no_answer"  # the episode ended without an answer; see its stop reason
    RETRIEVAL = "retrieval"  # wrong answer, and some gold passage was never retrieved
    READING = "reading"  # wrong answer with every gold passage retrieved
    UNKNOWN = "unknown"  # wrong answer, and the data set has no gold passages


@dataclass(frozen=True, slots=True)
class QuestionScore:
    """All metrics of one question. None where the question lacks the gold annotation."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    question_id: str
    kind: str
    #: Hops that need a search; 0 without a gold decomposition.
    hops: int
    prediction: str | None
    stop: StopReason
    em: float = 0.0
    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0
    cover_em: float = 0.0
    #: Share of gold passages retrieved; None without gold passages.
    gold_recall: float | None = None
    steps: int = 0
    #: Number of queries, plus one if passages were retrieved before the first step.
    searches: int = 0
    #: Queries that repeat an earlier one of the same episode after normalization.
    redundant_queries: int = 0
    #: Searches beyond those of the gold decomposition; None without one.
    over_search: int | None = None
    #: 1 if answered with fewer searches than needed, else 0; None without a gold decomposition.
    under_search: int | None = None
    malformed_steps: int = 0
    #: Steps outside the strict format that were read leniently.
    repaired_steps: int = 0
    #: 1 if the answer was given when asked for it at a limit or after the last slip.
    forced: int = 0
    #: 1 if an LLM judge accepts the answer, else 0; None if none was asked.
    judged: int | None = None
    #: Tokens of all generations, including candidates that were not selected.
    tokens_read: int = 0
    tokens_written: int = 0
    #: Searches of all candidates, selected or not; None in files without it.
    searches_made: int | None = None
    #: The error, for episodes that failed or were cancelled.
    failure: str = ""
    #: The kind of its answer. Written only where it is not a text.
    answer_kind: AnswerKind = AnswerKind.TEXT

    @property
    def miss(self) -> Miss | None:
        """The cause of a wrong answer; None if the answer matches exactly.

        The first that applies, in the order of `Miss`. An episode without an answer is `NO_ANSWER` even if gold
        passages are missing too: it was not finished, so its retrieval was not either.
        """
        if self.em == 1:
            return None
        if self.stop in (StopReason.FAILED, StopReason.CANCELLED):
            return Miss.FAILED
        if self.prediction is None:
            return Miss.NO_ANSWER
        if self.gold_recall is None:
            return Miss.UNKNOWN
        return Miss.RETRIEVAL if self.gold_recall < 1 else Miss.READING


def score(trajectory: Trajectory) -> QuestionScore:
    """The metrics of a finished trajectory."""
    question = trajectory.question
    if trajectory.stop is None:
        raise ValueError(f"the trajectory of question {question.id!r} has not ended; only finished ones have a score")
    answer = score_question(trajectory.answer, question)
    searches = len(trajectory.queries) + bool(trajectory.given)
    excess = searches - question.searches_needed
    return QuestionScore(
        question_id=question.id,
        kind=question.kind,
        hops=question.searches_needed,
        prediction=trajectory.answer,
        stop=trajectory.stop,
        **asdict(answer),
        gold_recall=gold_recall(question, trajectory.found),
        steps=len(trajectory.steps),
        searches=searches,
        redundant_queries=len(trajectory.queries) - len({normalize(query) for query in trajectory.queries}),
        over_search=max(excess, 0) if question.hops else None,
        under_search=int(trajectory.answer is not None and excess < 0) if question.hops else None,
        malformed_steps=trajectory.slips,
        repaired_steps=sum(not step.action.is_strict for step in trajectory.steps) - trajectory.slips,
        forced=int(trajectory.stop is StopReason.FORCED),
        tokens_read=sum(step.usage.read for step in trajectory.steps),
        tokens_written=sum(step.usage.written for step in trajectory.steps),
        answer_kind=question.answer_kind,
    )


def failed_score(question: Question, stop: StopReason, reason: str) -> QuestionScore:
    """The score of an episode without a trajectory: all 0, so that failures lower the mean."""
    if stop not in (StopReason.FAILED, StopReason.CANCELLED):
        raise ValueError(f"an episode with stop reason {stop.value!r} has a trajectory; pass it to score()")
    return replace(score(Trajectory(question, "", stop=stop)), failure=reason)


def gold_recall(question: Question, found: Sequence[Passage]) -> float | None:
    """Share of the question's gold passages that are among those found, in any index; None without gold passages."""
    hits = gold_found(question, found)
    return sum(hits) / len(hits) if hits else None
