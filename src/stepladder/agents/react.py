"""ReAct: alternating lines of thought, action and observation.

    Thought: thought
    Action: Search[query]
    Observation:
    [1] Title: text
    Thought: thought
    Action: Finish[answer]

The context is one growing transcript. The environment writes the observations, the policy everything else. The grammar
is line-based, so retrieved text is kept on lines that cannot be mistaken for a thought or an action.
"""

import re
from typing import ClassVar

from stepladder.agents.base import (
    PROMPTS,
    Agent,
    brief,
    environment_segment,
    malformed,
    one_line,
    prompt_segment,
    render_passages,
    show_question,
)
from stepladder.agents.formats.json_action import json_action
from stepladder.agents.formats.step_grammars import line_grammar
from stepladder.core.grammars.grammar import Grammar
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory

_KEYWORDS = {ActionKind.QUERY: "Search", ActionKind.ANSWER: "Finish"}
_KINDS = {word: kind for kind, word in _KEYWORDS.items()}
_ACTION_LINE = re.compile(r"^Action:", re.MULTILINE)
_ACTION = re.compile(rf"({'|'.join(_KINDS)})\[(.*)\]")
#: A second action after the closing bracket of the first.
_SECOND_ACTION = re.compile(rf"\].*\b({'|'.join(_KINDS)})\[")


#: A line with an action, perhaps numbered, with or without `Action:`, perhaps without its closing bracket.
_LOOSE_ACTION = re.compile(
    rf"(?:^|\bAction(?:[ \t]*\d+)?[ \t]*:)[ \t*`-]*({'|'.join(_KINDS)})[ \t]*\[(.*)$", re.MULTILINE | re.IGNORECASE
)


def _within_brackets(rest: str) -> str:
    """What comes before the bracket that closes an action; all of it if there is none.

    >>> _within_brackets("List[int]] then Finish[x]"), _within_brackets("Rome")
    ('List[int]', 'Rome')
    """
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "[") - (character == "]")
        if depth < 0:
            return rest[:place].strip()
    return rest.strip()


class ReAct(Agent):
    """`Thought: ..` and `Action: Search[..]` or `Action: Finish[..]`."""

    name: ClassVar[str] = "react"
    summary: ClassVar[str] = "alternates thoughts and searches, then answers"
    prompt: ClassVar[str] = PROMPTS["react"]
    kinds: ClassVar[frozenset[ActionKind]] = frozenset(_KEYWORDS)
    stops: ClassVar[tuple[str, ...]] = ("]\n",)
    turn_opening: ClassVar[str] = "Thought:"
    query_opening: ClassVar[str] = "Action: Search["
    answer_opening: ClassVar[str] = "Action: Finish["
    #: What follows the passages: an empty line, so that a prompted model does not continue their list.
    after_passages: ClassVar[str] = "\n"
    observation_openings: ClassVar[tuple[str, ...]] = ("\nObservation",)

    def grammar(self, trajectory: Trajectory, *, forced: bool = False) -> Grammar:
        """A line with a thought and a line with an action."""
        due = self.due(trajectory, forced=forced)
        return line_grammar([word for kind, word in _KEYWORDS.items() if kind in due])

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The transcript so far, with the observation of the last search appended."""
        if not trajectory.steps:
            return (prompt_segment(self.prompt.format(question=show_question(trajectory.question, one_line))),)
        last = trajectory.steps[-1]
        if last.action.kind is not ActionKind.QUERY:  # a slip
            return trajectory.context()
        line_break = "" if last.written.text.endswith("\n") else "\n"  # chat models end their turn at the bracket
        found = render_passages(last.passages)
        return (*trajectory.context(), environment_segment(f"{line_break}Observation:\n{found}\n{self.after_passages}"))

    def parse(self, text: str, trajectory: Trajectory) -> Action:  # noqa: ARG002
        """A search or an answer with the thought before it, or malformed."""
        if not text.strip():
            return malformed(text, "nothing was written")
        line = _ACTION_LINE.search(text)
        if line is None:
            return malformed(text, "no line `Action: ...`")
        thought = text[: line.start()].strip()
        if not thought.startswith("Thought:"):
            return malformed(text, "expected `Thought: ...` before the action")
        action = _ACTION.fullmatch(text[line.end() :].strip())
        if action is None:
            return malformed(text, "expected `Action: Search[...]` or `Action: Finish[...]`, on one line and last")
        content = action[2].strip()
        if _SECOND_ACTION.search(content):
            return malformed(text, "more than one action on a line")
        if not content:
            return malformed(text, f"empty {action[1]}[]")
        return Action(_KINDS[action[1]], content, thought.removeprefix("Thought:").strip())

    def find_action(self, text: str, trajectory: Trajectory) -> Action | None:  # noqa: ARG002
        """The first `Search[..]` or `Finish[..]` that begins a line or follows `Action:`; else RAG-Gym's JSON."""
        for line in _LOOSE_ACTION.finditer(text):
            if content := _within_brackets(line[2]):
                thought = text[: line.start()].strip().removeprefix("Thought:").strip()
                return Action(_KINDS[line[1].title()], content, thought)
        return json_action(text)

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """Two lines, thought and action."""
        thought, content = (" ".join(each.splitlines()) for each in (action.thought, action.content))
        full_stop = " ." if thought.endswith("]") else ""  # a line that ends with a bracket would match the stop string
        return f"Thought: {thought}{full_stop}\nAction: {_KEYWORDS[action.kind]}[{content}]\n"


ReActBrief = brief(ReAct, prompt=PROMPTS["react-brief"], after_passages="")
