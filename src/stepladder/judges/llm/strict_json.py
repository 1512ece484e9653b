"""A model's reply as the JSON object it was asked for, or an error that tells the model what is wrong.

In: text that nobody trusts. Out: a dict of plain values. Nothing is guessed and nothing is run: prose around the
object, a key too many or given twice, NaN and the like are refused. A code fence around the whole is taken off,
because chat models cannot be talked out of it.
"""

import json
import re
from collections.abc import Collection
from typing import Any, NoReturn

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)


class BadReply(ValueError):
    """What is wrong with a reply, in words for the model that wrote it."""


def read_object(text: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """The object in a reply, with all required keys and no others than the optional ones.

    >>> read_object('{"score": 70}', required=["score"])
    {'score': 70}
    >>> read_object('I say {"score": 70}', required=["score"])
    Traceback (most recent call last):
    stepladder.judges.llm.strict_json.BadReply: not a single JSON object: Expecting value at character 1
    """
    text = text.strip()
    fenced = _FENCED.fullmatch(text)
    try:
        found = json.loads(fenced[1] if fenced else text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except json.JSONDecodeError as error:
        raise BadReply(f"not a single JSON object: {error.msg} at character {error.pos + 1}") from error
    except BadReply:
        raise
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, thousands of brackets
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
