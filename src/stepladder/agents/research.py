"""ReSearch: draft an answer, find its first claim without support in the results, and search for that (RAG-Gym).

Every step is one JSON object:

    {"reasoning": "..", "answer": "as far as known", "claim": "what is not grounded yet", "query": "what to search for"}
    {"result": "what the passages answer to the query"}
    {"reasoning": "..", "answer": "the answer"}                   all claims have support: the end

An action needs no more than its own field, "query", "result" or "answer"; prompts for small models leave the draft out.
A query "None" is no query. The history holds only queries and their results; every step reasons from scratch. Almost
valid JSON (a code fence, a trailing comma, a missing bracket) is repaired. What cannot be repaired is malformed.
"""

import json
from typing import ClassVar

from stepladder.agents.base import PROMPTS, brief, malformed, one_line, show_question
from stepladder.agents.formats.json_action import is_query, json_action, read_object
from stepladder.agents.formats.step_grammars import json_grammar
from stepladder.agents.prompted import PASSAGES_TAG, PromptedAgent, Prompts, State
from stepladder.core.grammars.grammar import Grammar
from stepladder.core.trace import Action, ActionKind, Trajectory

UNKNOWN = "unknown"

#: The fields of the objects of each kind, in the order in which they are written.
_FIELDS: dict[ActionKind, tuple[tuple[str, ...], ...]] = {
    ActionKind.QUERY: (("reasoning", "query"), ("reasoning", "answer", "claim", "query")),
    ActionKind.SUB_ANSWER: (("result",),),
    ActionKind.ANSWER: (("reasoning", "answer"),),
}
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
    answer_opening: ClassVar[str] = ""
    answer_mark: ClassVar[str] = '"answer": "'

    def grammar(self, trajectory: Trajectory, *, forced: bool = False) -> Grammar:
        """An object with the fields of one of the actions that may follow."""
        due = self.due(trajectory, forced=forced)
        objects = [fields for kind, every in _FIELDS.items() if kind in due for fields in every]
        return json_grammar([*objects, ("answer",)] if due == {ActionKind.ANSWER} else objects)

    def render_question(self, trajectory: Trajectory) -> str:
        """On one line, because the history has one entry per line; options have lines of their own."""
        return show_question(trajectory.question, one_line)

    def render_action(self, action: Action) -> str:
        """A query or its result, on one line."""
        return f"{_HISTORY_LINE[action.kind]}{one_line(action.content)}\n"

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """An action that is valid in the current state, or malformed."""
        if not text.strip():
            return malformed(text, "nothing was written")
        if f"<{PASSAGES_TAG}>" in text.partition("{")[0]:
            return malformed(text, f"<{PASSAGES_TAG}> is not for the policy to write")
        fields = read_object(text)
        if isinstance(fields, str):
            return malformed(text, fields)
        if not is_query(fields.get("query", "")):
            fields.pop("query", None)
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

    def opening(self, trajectory: Trajectory, *, forced: bool) -> str:
        """The beginning of an object."""
        if not self.play.opens_turns:
            return ""
        due = self.due(trajectory, forced=forced)
        field = "reasoning" if len(due) > 1 else self.tag_of[next(iter(due))]
        return f'{{"{field}": "'

    def find_action(self, text: str, trajectory: Trajectory) -> Action | None:
        """The first object with an action, also by RAG-Gym's field names; a result only where one is due."""
        return self.fitting(json_action(text), trajectory)

    def write(self, action: Action, trajectory: Trajectory) -> str:
        """An object on one line. While searching, the drafted answer is "unknown"."""
        fields: dict[str, str] = {}
        if self.state(trajectory) is not State.DOCUMENT_ANALYSIS:
            fields["reasoning"] = action.thought
        if action.kind is ActionKind.QUERY:
            fields |= {"answer": UNKNOWN, "claim": action.content}
        return json.dumps({**fields, self.tag_of[action.kind]: action.content}, ensure_ascii=False) + "\n"


ReSearchBrief = brief(ReSearch, prompts=PROMPTS["research-brief"])
