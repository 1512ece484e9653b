"""Direct: answer from the model's own knowledge, without searching. The baseline that search has to beat."""

from typing import ClassVar

from stepladder.agents.base import Agent, malformed, neutralize, prompt_segment
from stepladder.agents.tags import read_blocks, write_block
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory

PROMPT = """Answer the question with a short phrase, written as <answer>the answer</answer>.
Question: {question}
"""


_TAGS = ("answer",)


class Direct(Agent):
    """`<answer>a</answer>`"""

    name: ClassVar[str] = "direct"
    summary: ClassVar[str] = "answers immediately, without searching"
    kinds: ClassVar[frozenset[ActionKind]] = frozenset({ActionKind.ANSWER})
    stops: ClassVar[tuple[str, ...]] = ("</answer>",)
    #: Instructions, with a slot for the question.
    prompt: ClassVar[str] = PROMPT

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """Instructions and the question."""
        return (prompt_segment(self.prompt.format(question=neutralize(trajectory.question.text))),)

    def parse(self, text: str, trajectory: Trajectory) -> Action:  # noqa: ARG002
        """An answer, or malformed."""
        blocks = read_blocks(text, _TAGS)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        if len(blocks) > 1:
            return malformed(text, "more than one answer")
        if not blocks[0].content:
            return malformed(text, "empty <answer>")
        return Action(ActionKind.ANSWER, blocks[0].content)

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """The answer in its tag."""
        return write_block("answer", action.content, _TAGS)
