"""Strict parsing of JSON request bodies, with readable errors.

In: the body of a request, or a value in it. Out: plain data, or `BadRequest`.
"""

import json
from typing import Any, NoReturn

from stepladder.core.errors import StepladderError


class BadRequest(StepladderError):
    """An invalid request, with the reason."""


def json_object(body: bytes, example: str) -> dict[str, Any]:
    """The JSON object in a body; `example` is an example for error messages.

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
        raise BadRequest("the body is nested too deeply") from error
    if not isinstance(found, dict):
        raise BadRequest(f"the body must be an object such as {example}, found {json_type(found)}")
    return found


def json_type(value: object) -> str:
    """The type of a JSON value, for error messages.

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
        raise BadRequest("the body has a duplicate key")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_distinct_keys)
