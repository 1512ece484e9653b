"""How good an answer is, and how it was come by.

In: a prediction and the accepted answers, or a whole finished `Trajectory`. Out: numbers. `score` gives everything
that is measured of one question as a `QuestionScore`; means, intervals and tests over many are in `stats.py`.

Exact match, F1, precision and recall are those of HotpotQA's official script (`hotpot_evaluate_v1.py`), down to its
corners: yes, no and noanswer earn nothing unless equal, and an answer of articles and punctuation alone ("The The")
can match exactly but has no token to earn an F1 with.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import ConfigDict

from stepladder.core.trace import ActionKind, Question, StopReason, Trajectory

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Answers that have no partial credit.
_ALL_OR_NOTHING = frozenset({"yes", "no", "noanswer"})


# --- Answers --------------------------------------------------------------------------------------------


def normalize(text: str) -> str:
    """Lower case, without ASCII punctuation, without articles, with single spaces; in that order.

    >>> normalize("The  Tower, of an U.S.A. town")
    'tower of usa town'
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


@dataclass(frozen=True, slots=True)
class AnswerScore:
    """A prediction against the accepted answers, each number between 0 and 1."""

    em: float = 0.0
    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0
    cover_em: float = 0.0


def token_overlap(prediction: str, answer: str) -> tuple[float, float, float]:
    """F1, precision and recall over the tokens of both texts, repeats counted.

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
    """Whether the answer occurs in the prediction as a run of whole tokens, both normalised.

    >>> covers("It was built in 1889.", "1889"), covers("It was built in 18890.", "1889")
    (True, False)
    """
    return f" {normalize(answer)} " in f" {normalize(prediction)} "


def score_answer(prediction: str | None, answers: Sequence[str]) -> AnswerScore:
    """The best match over the accepted answers; no prediction scores 0.

    F1, precision and recall come together from the answer with the best F1 (the first of equals). Exact match and
    cover-EM count when any accepted answer has them.

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

    FAILED = "failed"  # the episode broke or was cancelled: no word on the policy
    NO_ANSWER = "no_answer"  # the episode ended without an answer; its stop reason says how
    RETRIEVAL = "retrieval"  # answered wrongly, and some gold passage was never found
    READING = "reading"  # answered wrongly with every gold passage in view
    UNKNOWN = "unknown"  # answered wrongly, and the data set names no gold passages


@dataclass(frozen=True, slots=True)
class QuestionScore:
    """Everything measured of one question. None marks what the question's annotation cannot tell."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    question_id: str
    kind: str
    #: Hops that need a search, by the gold decomposition; 0 when none is known.
    hops: int
    prediction: str | None
    stop: StopReason
    em: float = 0.0
    f1: float = 0.0
    precision: float = 0.0
    recall: float = 0.0
    cover_em: float = 0.0
    #: Share of the gold passages among those found; None without gold passages.
    gold_recall: float | None = None
    steps: int = 0
    #: Queries written, and one more when passages were given before the first step.
    searches: int = 0
    #: Queries that repeat an earlier one of the same episode, up to normalisation.
    redundant_queries: int = 0
    #: Searches beyond those the gold decomposition needs; None without one.
    over_search: int | None = None
    #: 1 when answered with fewer searches than needed, else 0; None without a gold decomposition.
    under_search: int | None = None
    malformed_steps: int = 0
    #: Of everything that was played, also what was not chosen in the end.
    tokens_read: int = 0
    tokens_written: int = 0
    #: Searches of everything that was played; None in files that do not tell.
    searches_made: int | None = None
    #: What broke, for episodes that failed or were cancelled.
    failure: str = ""

    @property
    def miss(self) -> Miss | None:
        """The cause of a wrong answer; None when the answer matches exactly.

        The first that holds in the order of `Miss` counts. An episode without an answer is `NO_ANSWER` even if gold
        passages are missing too: it was still on its way, so what it had not found yet explains nothing.
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
    """Measure a finished trajectory."""
    question = trajectory.question
    if trajectory.stop is None:
        raise ValueError(f"the trajectory of question {question.id!r} has not ended; only finished ones have a score")
    answer = score_answer(trajectory.answer, question.answers)
    searches = len(trajectory.queries) + bool(trajectory.given)
    too_many = searches - question.searches_needed
    answered = trajectory.answer is not None
    return QuestionScore(
        question_id=question.id,
        kind=question.kind,
        hops=question.searches_needed,
        prediction=trajectory.answer,
        stop=trajectory.stop,
        em=answer.em,
        f1=answer.f1,
        precision=answer.precision,
        recall=answer.recall,
        cover_em=answer.cover_em,
        gold_recall=gold_recall(question, {passage.id for passage in trajectory.found}),
        steps=len(trajectory.steps),
        searches=searches,
        redundant_queries=len(trajectory.queries) - len({normalize(query) for query in trajectory.queries}),
        over_search=max(too_many, 0) if question.hops else None,
        under_search=int(answered and too_many < 0) if question.hops else None,
        malformed_steps=sum(step.action.kind is ActionKind.MALFORMED for step in trajectory.steps),
        tokens_read=sum(step.usage.read for step in trajectory.steps),
        tokens_written=sum(step.usage.written for step in trajectory.steps),
    )


def failed_score(question: Question, stop: StopReason, reason: str) -> QuestionScore:
    """The score of an episode that left no trajectory: 0 everywhere, so that failures are never averaged away."""
    if stop not in (StopReason.FAILED, StopReason.CANCELLED):
        raise ValueError(f"an episode that stopped as {stop.value!r} has a trajectory; give it to score()")
    return QuestionScore(
        question_id=question.id,
        kind=question.kind,
        hops=question.searches_needed,
        prediction=None,
        stop=stop,
        gold_recall=gold_recall(question, frozenset()),
        over_search=0 if question.hops else None,
        under_search=0 if question.hops else None,
        failure=reason,
    )


def gold_recall(question: Question, found: set[str] | frozenset[str]) -> float | None:
    """Share of the question's gold passages with one of their ids among those found; None when it has none."""
    groups = question.gold_passages
    if not groups:
        return None
    return sum(not found.isdisjoint(group) for group in groups) / len(groups)
