"""The text metrics of answers: exact match, F1, precision, recall, cover-EM.

In: a prediction and the accepted answers, as texts. Out: an `AnswerScore`. They follow HotpotQA's official script
(`hotpot_evaluate_v1.py`), including its edge cases: yes, no and noanswer get no partial credit, and an answer of only
articles and punctuation ("The The") can match exactly but has F1 0. `answer_kinds.py` scores the other kinds of answer.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
#: Answers that have no partial credit.
_ALL_OR_NOTHING = frozenset({"yes", "no", "noanswer"})


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
