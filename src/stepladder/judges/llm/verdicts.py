"""Strict parsing of a judge's replies, by mode. `prompts.py` asks for these JSON forms.

In: the untrusted text of a reply and the letters of the candidates. Out: an ordering of letters, or a score. Nothing is
guessed and nothing is executed: text around the object, unknown or duplicate keys, NaN and infinities are errors. A
code fence around the whole reply is removed, because chat models add one even when told not to. A reply that is
ambiguous or malformed raises `BadReply`, whose message goes into the repair prompt.
"""

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NoReturn

from stepladder.core.unicode import replace_surrogates

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)


class BadReply(ValueError):
    """What is wrong with a reply. The message is sent back to the model: changing it changes results."""


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


def read_correct(text: str) -> bool:
    """Whether an answer is right.

    >>> read_correct('{"reason": "The same person.", "correct": true}')
    True
    """
    reply = read_object(text, required=("correct",), optional=("reason",))
    if not isinstance(reply["correct"], bool):
        raise BadReply("'correct' must be true or false")
    return reply["correct"]


def _check_letter(letter: object, letters: Sequence[str], key: str) -> None:
    if letter not in letters:
        raise BadReply(f"{key!r} must name candidates by their letters ({', '.join(letters)})")


def _reason(reply: dict[str, Any]) -> str:
    reason = reply.get("reason", "")
    if not isinstance(reason, str):
        raise BadReply("'reason' must be text")
    return replace_surrogates(reason)


def read_object(text: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """The JSON object of a reply, with all required keys and no others but the optional ones.

    >>> read_object('{"score": 70}', required=["score"])
    {'score': 70}
    >>> read_object("[70]", required=["score"])
    Traceback (most recent call last):
    stepladder.judges.llm.verdicts.BadReply: it is JSON, but not an object
    """
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        found = json.loads(fenced[1] if fenced else text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except json.JSONDecodeError as error:
        raise BadReply(
            f"it is not one JSON object and nothing else: {error.msg} at character {error.pos + 1}"
        ) from error
    except BadReply:
        raise
    except (ValueError, RecursionError) as error:  # numbers or nesting beyond the parser's limits
        raise BadReply("it is not JSON that can be read") from error
    if not isinstance(found, dict):
        raise BadReply("it is JSON, but not an object")
    if missing := sorted(set(required) - set(found)):
        raise BadReply(f"the key {missing[0]!r} is missing")
    if unknown := sorted(set(found) - set(required) - set(optional)):
        raise BadReply(f"the key {unknown[0][:50]!r} was not asked for")
    return found


def _no_constant(name: str) -> NoReturn:
    raise BadReply(f"{name} is not JSON")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadReply("a key is given twice")
    return found
