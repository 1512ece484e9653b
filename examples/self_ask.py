"""A custom agent in one file: Self-Ask, which asks itself follow-up questions, one line per step.

    Follow up: Who designed Orm Tower?
    Context: [1] Orm Tower: Orm Tower was designed by Ada Tarn in 1871.
    Intermediate answer: Ada Tarn
    So the final answer is: Velm

Every command accepts its path as --agent: nothing has to be registered.

    stepladder ask --agent examples/self_ask.py --engine oracle
    stepladder train sft --agent examples/self_ask.py --out runs/self-ask
    stepladder eval --run runs/self-ask

`check_agent` runs when the file is loaded and reports mistakes.
"""

from typing import ClassVar

from stepladder.agents.base import Agent, environment_segment, malformed, prompt_segment, render_passages, show_question
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory

PROMPT = """Answer the question by asking follow-up questions, one at a time, each on a line: Follow up: ...
When context is given, answer it on a line: Intermediate answer: ...
When nothing is left to ask, end with a short phrase on a line: So the final answer is: ...
Question: {question}
"""
HEADS = {
    ActionKind.QUERY: "Follow up:",
    ActionKind.SUB_ANSWER: "Intermediate answer:",
    ActionKind.ANSWER: "So the final answer is:",
}


class SelfAsk(Agent):
    """One line per step; its first words give the kind of action."""

    name: ClassVar[str] = "self-ask"
    summary: ClassVar[str] = "asks itself follow-up questions, then answers"
    kinds: ClassVar[frozenset[ActionKind]] = frozenset(HEADS)
    stops: ClassVar[tuple[str, ...]] = ("\n",)

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The lines so far. Question and passages are data: they cannot start a line."""
        if not trajectory.steps:
            return (prompt_segment(PROMPT.format(question=show_question(trajectory.question))),)
        last = trajectory.steps[-1]
        if last.action.kind is not ActionKind.QUERY:
            return trajectory.context()
        line_break = "" if last.written.text.endswith("\n") else "\n"  # chat models end their turn without a line break
        found = " ".join(render_passages(last.passages).split("\n"))
        return (*trajectory.context(), environment_segment(f"{line_break}Context: {found}\n"))

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """The action of a line, or a malformed action with the reason. Never raises."""
        line = text.strip()
        kind = next((kind for kind, head in HEADS.items() if line.startswith(head)), None)
        if kind is None:
            return malformed(text, f"expected a line that begins with {' or '.join(HEADS.values())}")
        content = line.removeprefix(HEADS[kind]).strip()
        asked = bool(trajectory.steps) and trajectory.steps[-1].action.kind is ActionKind.QUERY
        if not content or asked is not (kind is ActionKind.SUB_ANSWER):
            return malformed(text, f"`{HEADS[kind]}` is {'not due' if content else 'empty'}")
        return Action(kind, content)

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """The line of an action: the inverse of `parse`."""
        return f"{HEADS[action.kind]} {' '.join(action.content.splitlines())}\n"
