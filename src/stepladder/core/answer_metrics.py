"""Answer metrics (EM, F1) and episode metrics.

In: a prediction and the accepted answers, or a finished `Trajectory`. Out: numbers. `score` returns all metrics of one
question as a `QuestionScore`; means, intervals and tests over questions are in evaluation/statistics.py.

Exact match, F1, precision and recall follow HotpotQA's official script (`hotpot_evaluate_v1.py`), including its edge
cases: yes, no and noanswer get no partial credit, and an answer of only articles and punctuation ("The The") can match
exactly but has F1 0.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import lru_cache

from pydantic import ConfigDict

from stepladder.core.trace import Question, StopReason, Trajectory

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Answers that have no partial credit.
_ALL_OR_NOTHING = frozenset({"yes", "no", "noanswer"})


# --- Answers --------------------------------------------------------------------------------------------


@lru_cache(4096)
def normalize(text: str) -> str:
    """Lower-case, remove ASCII punctuation, remove articles, collapse whitespace; in that order.

    >>> normalize("The  Tower, of an U.S.A. town")
    'tower of usa town'
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """Metrics of a prediction against the accepted answers, each between 0 and 1."""

    em: float = 0.0
    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0
    cover_em: float = 0.0


def token_overlap(prediction: str, answer: str) -> tuple[float, float, float]:
    """Token-level F1, precision and recall, repeats counted.

    >>> token_overlap("the tower of London", "Tower Bridge, London")
    (0.6666666666666666, 0.6666666666666666, 0.6666666666666666)
    """
    predicted, accepted = normalize(prediction), normalize(answer)
    if predicted != accepted and not _ALL_OR_NOTHING.isdisjoint((predicted, accepted)):
        return 0.0, 0.0, 0.0
    predicted_tokens, accepted_tokens = predicted.split(), accepted.split()
    shared = (Counter(predicted_tokens) & Counter(accepted_tokens)).total()
    if shared == 0:
        return 0.0, 0.0, 0.0
    precision, recall = shared / len(predicted_tokens), shared / len(accepted_tokens)
    return 2 * precision * recall / (precision + recall), precision, recall


def covers(prediction: str, answer: str) -> bool:
    """Whether the answer occurs in the prediction as a sequence of whole tokens, both normalized.

    >>> covers("It was built in 1889.", "1889"), covers("It was built in 18890.", "1889")
    (True, False)
    """
    return f" {normalize(answer)} " in f" {normalize(prediction)} "


def score_answer(prediction: str | None, answers: Sequence[str]) -> AnswerScore:
    """The best match over the accepted answers; no prediction scores 0.

    F1, precision and recall are those of the answer with the best F1 (the first in a tie). Exact match and cover-EM
    are 1 if any accepted answer matches.

    >>> score_answer("Edson", ("Edson Arantes do Nascimento", "Pelé")).precision
    1.0
    """
    if not answers:
        raise ValueError("there is no accepted answer to score against")
    if prediction is None:
        return AnswerScore()
    f1, precision, recall = max((token_overlap(prediction, each) for each in answers), key=lambda best: best[0])
    return AnswerScore(
        em=float(any(normalize(prediction) == normalize(each) for each in answers)),
        f1=f1,
        precision=precision,
        recall=recall,
        cover_em=float(any(covers(prediction, each) for each in answers)),
    )


# --- Trajectories ---------------------------------------------------------------------------------------


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
    answer = score_answer(trajectory.answer, question.answers)
    searches = len(trajectory.queries) + bool(trajectory.given)
    excess = searches - question.searches_needed
    return QuestionScore(
        question_id=question.id,
        kind=question.kind,
        hops=question.searches_needed,
        prediction=trajectory.answer,
        stop=trajectory.stop,
        **asdict(answer),
        gold_recall=gold_recall(question, {passage.id for passage in trajectory.found}),
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
    )


def failed_score(question: Question, stop: StopReason, reason: str) -> QuestionScore:
    """The score of an episode without a trajectory: all 0, so that failures lower the mean."""
    if stop not in (StopReason.FAILED, StopReason.CANCELLED):
        raise ValueError(f"an episode with stop reason {stop.value!r} has a trajectory; pass it to score()")
    return replace(score(Trajectory(question, "", stop=stop)), failure=reason)


def gold_recall(question: Question, found: set[str] | frozenset[str]) -> float | None:
    """Share of the question's gold passages with an id among those found; None without gold passages."""
    groups = question.gold_passages
    return sum(not found.isdisjoint(group) for group in groups) / len(groups) if groups else None
