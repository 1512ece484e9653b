"""Parsing of a judge's replies, by mode. `prompts.py` asks for these JSON forms.

In: the text of a reply and the letters of the candidates. Out: an ordering of letters, or a score. An ambiguous or
malformed reply raises `BadReply`, whose message goes into the repair prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from stepladder.core.unicode import replace_surrogates
from stepladder.judges.llm.strict_json import BadReply, read_object


@dataclass(frozen=True, slots=True)
class Ordering:
    """Pairs of letters (better, worse), the clearest first; empty if the judge sees no difference."""

    pairs: tuple[tuple[str, str], ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Grade:
    """A score between 0 and 1."""

    score: float
    reason: str = ""


def read_choice(text: str, letters: Sequence[str]) -> Ordering:
    """One best and one worst candidate, or neither.

    >>> read_choice('{"reason": "B guesses.", "best": "A", "worst": "B"}', ["A", "B"])
    Ordering(pairs=(('A', 'B'),), reason='B guesses.')
    """
    reply = read_object(text, required=("best", "worst"), optional=("reason",))
    best, worst = reply["best"], reply["worst"]
    if best is None and worst is None:
        return Ordering((), _reason(reply))
    if best is None or worst is None:
        raise BadReply("'best' and 'worst' must both be letters, or both be null")
    for key in ("best", "worst"):
        _check_letter(reply[key], letters, key)
    if best == worst:
        raise BadReply(f"{best!r} cannot be both best and worst; give null for both if none is better")
    return Ordering(((best, worst),), _reason(reply))


def read_ranking(text: str, letters: Sequence[str]) -> Ordering:
    """All candidates from best to worst. Pairs are ordered by the difference of their ranks.

    >>> read_ranking('{"ranking": ["C", "A", "B"]}', ["A", "B", "C"]).pairs
    (('C', 'B'), ('C', 'A'), ('A', 'B'))
    """
    reply = read_object(text, required=("ranking",), optional=("reason",))
    ranking = reply["ranking"]
    if not isinstance(ranking, list):
        raise BadReply("'ranking' must be a list of letters")
    for letter in ranking:
        _check_letter(letter, letters, "ranking")
    if len(ranking) != len(letters) or len(set(ranking)) != len(letters):
        raise BadReply(f"'ranking' must hold each of {', '.join(letters)} exactly once")
    ranks = sorted(combinations(range(len(ranking)), 2), key=lambda pair: pair[0] - pair[1])
    return Ordering(tuple((ranking[better], ranking[worse]) for better, worse in ranks), _reason(reply))


def read_score(text: str) -> Grade:
    """A score from 0 to 100, as a fraction.

    >>> read_score('{"score": 70}')
    Grade(score=0.7, reason='')
    """
    reply = read_object(text, required=("score",), optional=("reason",))
    score = reply["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 100:
        raise BadReply("'score' must be a number from 0 to 100")
    return Grade(score / 100, _reason(reply))


def _check_letter(letter: object, letters: Sequence[str], key: str) -> None:
    if letter not in letters:
        raise BadReply(f"{key!r} must name candidates by their letters ({', '.join(letters)})")


def _reason(reply: dict[str, Any]) -> str:
    reason = reply.get("reason", "")
    if not isinstance(reason, str):
        raise BadReply("'reason' must be text")
    return replace_surrogates(reason)
