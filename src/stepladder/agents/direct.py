"""Direct: answer from the model's own knowledge, without searching. The baseline that search has to beat."""

from typing import ClassVar

from stepladder.agents.base import PROMPTS, Agent, malformed, prompt_segment, question_line, render_passages
from stepladder.agents.tags import read_blocks, write_block
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory


class Direct(Agent):
    """`<answer>a</answer>`"""

    name: ClassVar[str] = "direct"
    summary: ClassVar[str] = "answers immediately, without searching"
    kinds: ClassVar[frozenset[ActionKind]] = frozenset({ActionKind.ANSWER})
    stops: ClassVar[tuple[str, ...]] = ("</answer>",)
    #: Instructions, with slots for the question and for the passages of an opening query.
    prompt: ClassVar[str] = PROMPTS["direct"]
    #: The blocks that the policy writes, the answer last.
    tags: ClassVar[tuple[str, ...]] = ("answer",)

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """Instructions and the question, with the passages of the opening query, if there was one."""
        question, passages = question_line(trajectory.question.text), render_passages(trajectory.given)
        return (prompt_segment(self.prompt.format(question=question, passages=passages)),)

    def parse(self, text: str, trajectory: Trajectory) -> Action:  # noqa: ARG002
        """An answer with its thought, if any, or malformed."""
        blocks = read_blocks(text, self.tags)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        if tuple(block.tag for block in blocks) != self.tags:
            expected = " and then ".join(f"<{tag}>" for tag in self.tags)
            return malformed(text, f"expected {expected}" if len(self.tags) > 1 else "more than one answer")
        *thoughts, answer = blocks
        if not answer.content:
            return malformed(text, "empty <answer>")
        return Action(ActionKind.ANSWER, answer.content, "".join(thought.content for thought in thoughts))

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """The thought, if any, and the answer in their tags."""
        contents = (action.thought, action.content)[-len(self.tags) :]
        return "".join(write_block(tag, content, self.tags) for tag, content in zip(self.tags, contents))
