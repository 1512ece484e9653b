"""Actions as JSON objects: the strict reading, and RAG-Gym's field names read leniently. Nothing is evaluated."""

import json
import math
from collections.abc import Collection, Iterator
from typing import Any

from json_repair import repair_json

from stepladder.core.trace import Action, ActionKind

#: In characters. A step is far shorter, and repairing long text is slow.
_MAX_REPAIR_LENGTH = 20_000
#: Objects of one text that are tried.
_MAX_OBJECTS = 50
#: RAG-Gym's agents put their action below this line.
_STRUCTURED = "### Structured Output"

_QUERY_FIELDS = ("query", "generated_query", "generated_queries")
_ANSWER_FIELDS = ("predicted_answer", "answer")
_RESULT_FIELDS = ("result",)
#: Values of a query field that mean that there is no query.
_NO_QUERY = frozenset({"", "none", "null"})


def is_query(text: str) -> bool:
    """Whether the text of a query field is a query: models write "None" where they have none."""
    return text.lower() not in _NO_QUERY


def read_object(text: str) -> dict[str, str] | str:
    """The text fields of a JSON object, or a description of the problem."""
    begin = text.find("{")
    if begin < 0:  # repair_json would turn any text into an object
        return "no JSON object"
    try:
        found, end = json.JSONDecoder().raw_decode(text, begin)
        if "{" in text[end:]:
            return "more than one JSON object"
    except (ValueError, RecursionError):
        if len(text) > _MAX_REPAIR_LENGTH:
            return f"not JSON, and too long to repair: {len(text):,} characters"
        try:
            found = repair_json(text[begin:], return_objects=True, skip_json_loads=True)
        except (ValueError, RecursionError) as error:
            return f"not JSON, and beyond repair: {error}"
    if not isinstance(found, dict):
        return f"expected a JSON object, found {type(found).__name__}"
    return {str(name): text for name, value in found.items() if (text := _text(value))}


def json_action(text: str, kinds: Collection[ActionKind] = frozenset(ActionKind)) -> Action | None:
    """The first object with a query or an answer, by our names or RAG-Gym's; a query comes before an answer.

    `kinds`: those that may follow; other fields are not read.

    >>> json_action('So: ```json\\n{"generated_queries": ["Who built it?"], "predicted_answer": "unknown"}\\n```')
    Action(kind=<ActionKind.QUERY: 'query'>, content='Who built it?', thought='So:', problem='')
    >>> json_action("{'query': None, 'predicted_answer': 'Rome'}").content
    'Rome'
    """
    head, mark, below = text.rpartition(_STRUCTURED)
    searched = below if mark else text
    for begin, fields in _objects(searched):
        thought = _first(fields, ("reasoning", "thought", "analysis"))
        thought = thought or (head if mark else searched[:begin]).strip().removesuffix("```json").strip("` \n")
        for kind, names in (
            (ActionKind.QUERY, _QUERY_FIELDS),
            (ActionKind.ANSWER, _ANSWER_FIELDS),
            (ActionKind.SUB_ANSWER, _RESULT_FIELDS),
        ):
            content = _first(fields, names) if kind in kinds else ""
            if content and (kind is not ActionKind.QUERY or is_query(content)):
                return Action(kind, content, thought)
    return None


def _objects(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON objects of a text with their positions; the text from its first bracket, repaired, if there is none."""
    decoder, begin, tried, found_any = json.JSONDecoder(), text.find("{"), 0, False
    first = begin
    while begin >= 0 and tried < _MAX_OBJECTS:
        tried += 1
        try:
            found, end = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            end = begin + 1
        else:
            if isinstance(found, dict):
                found_any = True
                yield begin, found
        begin = text.find("{", end)
    if found_any or first < 0 or len(text) - first > _MAX_REPAIR_LENGTH:
        return
    try:
        repaired = repair_json(text[first:], return_objects=True, skip_json_loads=True)
    except (ValueError, RecursionError):
        return
    for each in repaired if isinstance(repaired, list) else [repaired]:
        if isinstance(each, dict):
            yield first, each


def _first(fields: dict[str, Any], names: tuple[str, ...]) -> str:
    """The text of the first of these fields that has one; of a list, its first item."""
    for name in names:
        value = fields.get(name)
        if text := _text(value[0] if isinstance(value, list) and value else value):
            return text
    return ""


def _text(value: Any) -> str:
    """A string or number as text; empty for all other JSON values."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    return str(value)
