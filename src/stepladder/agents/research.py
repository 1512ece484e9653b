"""ReSearch: draft an answer, find its first claim without support in the results, and search for that (RAG-Gym).

Every step is one JSON object:

    {"reasoning": "..", "answer": "as far as known", "claim": "what is not grounded yet", "query": "what to search for"}
    {"result": "what the passages answer to the query"}
    {"reasoning": "..", "answer": "the answer"}                   all claims have support: the end

The history holds only queries and their results; every step reasons from scratch. Almost valid JSON (a code fence, a
trailing comma, a missing bracket) is repaired. What cannot be repaired is malformed.
"""

import json
import math
from typing import Any, ClassVar

from json_repair import repair_json

from stepladder.agents.base import PROMPTS, brief, malformed, one_line
from stepladder.agents.prompted import PromptedAgent, Prompts, State
from stepladder.core.trace import Action, ActionKind, Trajectory

UNKNOWN = "unknown"
#: In characters. A step is far shorter, and repairing long text is slow.
_MAX_REPAIR_LENGTH = 20_000

_HISTORY_LINE = {ActionKind.QUERY: "Search: ", ActionKind.SUB_ANSWER: "Result: ", ActionKind.ANSWER: "Answer: "}


class ReSearch(PromptedAgent):
    """One JSON object per step."""

    name: ClassVar[str] = "research"
    summary: ClassVar[str] = "drafts an answer, then searches for its first unsupported claim"
    prompts: ClassVar[Prompts] = PROMPTS["research"]
    #: The JSON field of each kind of action. An object with a query also has an answer, so the query is tested first.
    tag_of: ClassVar[dict[ActionKind, str]] = {
        ActionKind.QUERY: "query",
        ActionKind.SUB_ANSWER: "result",
        ActionKind.ANSWER: "answer",
    }
    #: JSON strings have no raw line breaks, so this ends an object, whether it has one line or several.
    stops: ClassVar[tuple[str, ...]] = ("}\n",)
    remembers_thoughts: ClassVar[bool] = False

    def render_question(self, trajectory: Trajectory) -> str:
        """On one line, because the history has one entry per line."""
        return one_line(trajectory.question.text)

    def render_action(self, action: Action) -> str:
        """A query or its result, on one line."""
        return f"{_HISTORY_LINE[action.kind]}{one_line(action.content)}\n"

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """An action that is valid in the current state, or malformed."""
        if not text.strip():
            return malformed(text, "nothing was written")
        fields = _read_object(text)
        if isinstance(fields, str):
            return malformed(text, fields)
        state = self.state(trajectory)
        kind = next((kind for kind, name in self.tag_of.items() if fields.get(name)), None)
        if kind is None or kind not in self.allowed(state):
            due = " or ".join(f'"{name}"' for kind, name in self.tag_of.items() if kind in self.allowed(state))
            found = ", ".join(f'"{name}"' for name in fields) or "nothing"
            return malformed(text, f"an object with {found} where {due} is due ({state})")
        thoughts = [fields.get("reasoning", "")]
        if kind is ActionKind.QUERY and fields.get("claim", "") != fields["query"]:
            thoughts.append(fields.get("claim", ""))
        return Action(kind, fields[self.tag_of[kind]], " ".join(filter(None, thoughts)))

    def write(self, action: Action, trajectory: Trajectory) -> str:
        """An object on one line. While searching, the drafted answer is "unknown"."""
        fields: dict[str, str] = {}
        if self.state(trajectory) is not State.DOCUMENT_ANALYSIS:
            fields["reasoning"] = action.thought
        if action.kind is ActionKind.QUERY:
            fields |= {"answer": UNKNOWN, "claim": action.content}
        return json.dumps({**fields, self.tag_of[action.kind]: action.content}, ensure_ascii=False) + "\n"


ReSearchBrief = brief(ReSearch, prompts=PROMPTS["research-brief"])


def _read_object(text: str) -> dict[str, str] | str:
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


def _text(value: Any) -> str:
    """A string or number as text; empty for all other JSON values."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return ""
    return str(value)
