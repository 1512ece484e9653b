"""Strict parsing of a model's JSON reply.

In: untrusted text. Out: a dict of plain values, or a `BadReply` whose message is sent back to the model. Nothing is
guessed and nothing is executed: text around the object, unknown or duplicate keys, NaN and infinities are errors. A
code fence around the whole reply is removed, because chat models add one even when told not to.
"""

import json
import re
from collections.abc import Collection
from typing import Any, NoReturn

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)


class BadReply(ValueError):
    """What is wrong with a reply. The message is sent back to the model: changing it changes results."""


def read_object(text: str, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Any]:
    """The JSON object of a reply, with all required keys and no others but the optional ones.

    >>> read_object('{"score": 70}', required=["score"])
    {'score': 70}
    >>> read_object("[70]", required=["score"])
    Traceback (most recent call last):
    stepladder.judges.llm.strict_json.BadReply: it is JSON, but not an object
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
