"""Chain of thought: one thought, then the answer, without searching."""

from typing import ClassVar

from stepladder.agents.base import malformed
from stepladder.agents.direct import Direct
from stepladder.agents.tags import read_blocks, write_block
from stepladder.core.trace import Action, ActionKind, Trajectory

PROMPT = """Think the question through: <step>thought</step>. Then answer with a short phrase: <answer>it</answer>.
Question: {question}
"""


_TAGS = ("step", "answer")


class CoT(Direct):
    """`<step>thought</step><answer>a</answer>`"""

    name: ClassVar[str] = "cot"
    summary: ClassVar[str] = "thinks once, then answers, without searching"
    prompt: ClassVar[str] = PROMPT

    def parse(self, text: str, trajectory: Trajectory) -> Action:  # noqa: ARG002
        """An answer with its thought, or malformed."""
        blocks = read_blocks(text, _TAGS)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        if [block.tag for block in blocks] != ["step", "answer"]:
            return malformed(text, "expected <step> and then <answer>")
        thought, answer = blocks
        if not answer.content:
            return malformed(text, "empty <answer>")
        return Action(ActionKind.ANSWER, answer.content, thought.content)

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """Thought and answer in their tags."""
        return write_block("step", action.thought, _TAGS) + write_block("answer", action.content, _TAGS)
