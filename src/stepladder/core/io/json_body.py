"""JSON that clients send: read strictly, and what is wrong with it said in words.

In: the body of a request, or a value in it. Out: plain data, or `BadRequest`.
"""

import json
from typing import Any, NoReturn

from stepladder.core.errors import StepladderError


class BadRequest(StepladderError):
    """A request that cannot be answered, and what is wrong with it."""


def json_object(body: bytes, example: str) -> dict[str, Any]:
    """The object in a body; `example` shows what was expected.

    >>> json_object(b"[]", '{"queries": ["..."]}')
    Traceback (most recent call last):
    stepladder.core.io.json_body.BadRequest: the body must be an object such as {"queries": ["..."]}, found a list
    """
    try:
        found = _DECODER.decode(body.decode("utf-8"))
    except BadRequest:
        raise
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not UTF-8 (byte {error.start})") from error
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the body is not a request: it is nested too deeply") from error
    if not isinstance(found, dict):
        raise BadRequest(f"the body must be an object such as {example}, found {json_type(found)}")
    return found


def json_type(value: object) -> str:
    """What a value of JSON is, in words.

    >>> json_type(True), json_type(None)
    ('true or false', 'null')
    """
    names = {
        bool: "true or false",
        int: "a number",
        float: "a decimal number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _no_number(word: str) -> NoReturn:
    raise BadRequest(f"the body is not JSON: {word} is not a number")


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRequest("the body has the same key twice; which of the values is meant?")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_distinct_keys)
