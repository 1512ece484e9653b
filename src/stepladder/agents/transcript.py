"""Agents whose context is one growing transcript. Each step is a thought and an action, both in tags.

    <think>thought</think><search>query</search>
    <information>
    [1] Title: text
    </information>
    <think>thought</think><answer>a</answer>

The environment writes the retrieved passages, the policy everything else. A subclass defines the tags and the order in
which actions may come.
"""

from typing import ClassVar

from stepladder.agents.base import environment_segment, malformed, neutralize, prompt_segment, render_passages
from stepladder.agents.tags import TaggedAgent, read_blocks, write_block
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory


class TranscriptAgent(TaggedAgent):
    """A tagged thought, then one tagged action."""

    #: Instructions, with a slot for the question.
    prompt: ClassVar[str]
    thought_tag: ClassVar[str]
    #: The tag around retrieved passages.
    passages_tag: ClassVar[str]

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the grammar."""
        return (self.thought_tag, self.passages_tag, *self.tag_of.values())

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The transcript so far, with the passages of the last query appended."""
        if not trajectory.steps:
            return (prompt_segment(self.prompt.format(question=neutralize(trajectory.question.text))),)
        context = trajectory.context()
        last = trajectory.steps[-1]
        if last.action.kind is ActionKind.QUERY:
            passages = render_passages(last.passages)
            return (*context, environment_segment(f"\n<{self.passages_tag}>\n{passages}\n</{self.passages_tag}>\n"))
        return context

    def parse(self, text: str, trajectory: Trajectory) -> Action:  # noqa: ARG002
        """A thought and an action, or malformed."""
        blocks = read_blocks(text, self.tags)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        kinds = {tag: kind for kind, tag in self.tag_of.items()}
        if len(blocks) != 2 or blocks[0].tag != self.thought_tag or blocks[1].tag not in kinds:
            actions = ", ".join(f"<{tag}>" for tag in kinds)
            return malformed(text, f"expected <{self.thought_tag}> and then one of {actions}")
        thought, action = blocks
        if not action.content:
            return malformed(text, f"empty <{action.tag}>")
        return Action(kinds[action.tag], action.content, thought.content)

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """The thought and the action in their tags."""
        thought = write_block(self.thought_tag, action.thought, self.tags)
        return thought + write_block(self.tag_of[action.kind], action.content, self.tags)
