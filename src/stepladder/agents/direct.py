"""Direct: answer from the model's own knowledge, without searching. The baseline that search has to beat."""

from typing import ClassVar

from stepladder.agents.base import PROMPTS, Agent, malformed, prompt_segment, render_passages, show_question
from stepladder.agents.formats.json_action import json_action
from stepladder.agents.formats.lenient import first_block
from stepladder.agents.formats.step_grammars import block_grammar, tagged_thought
from stepladder.agents.tags import read_blocks, write_block
from stepladder.core.grammars.grammar import Grammar, Space
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
    thinks: ClassVar[bool] = False
    turn_opening: ClassVar[str] = "<answer>"
    answer_opening: ClassVar[str] = "<answer>"

    def grammar(self, trajectory: Trajectory, *, forced: bool = False) -> Grammar:  # noqa: ARG002
        """The thought, if any, and the answer."""
        *thoughts, answer = self.tags
        return block_grammar([part for tag in thoughts for part in tagged_thought(tag)] or [Space()], [answer])

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """Instructions and the question, with the passages of the opening query, if there was one."""
        question, passages = show_question(trajectory.question), render_passages(trajectory.given)
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

    @property
    def markup(self) -> tuple[str, ...]:
        """The blocks that the policy writes."""
        return self.tags

    def find_action(self, text: str, trajectory: Trajectory) -> Action | None:  # noqa: ARG002
        """The first answer in its tag, or else in RAG-Gym's JSON."""
        found = first_block(text, ("answer",), self.tags)
        if found is not None:
            return Action(ActionKind.ANSWER, found.content, found.thought)
        action = json_action(text)
        return action if action is not None and action.kind is ActionKind.ANSWER else None

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """The thought, if any, and the answer in their tags."""
        contents = (action.thought, action.content)[-len(self.tags) :]
        return "".join(write_block(tag, content, self.tags) for tag, content in zip(self.tags, contents))
