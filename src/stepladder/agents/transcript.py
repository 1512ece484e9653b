"""Agents whose transcript is one growing text: a thought and a decision a step, in tags, and what searches found.

    <think>thought</think><search>query</search>
    <information>
    [1] Title: text
    </information>
    <think>thought</think><answer>a</answer>

The environment writes what was found, the policy everything else. Which tags there are, and in which order decisions
may come, is the agent's.
"""

from typing import ClassVar

from stepladder.agents.base import (
    Agent,
    environment_segment,
    malformed,
    neutralise,
    prompt_segment,
    render_passages,
)
from stepladder.agents.tags import read_blocks, write_block
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory


class Transcript(Agent):
    """A thought in its tag, then one decision in its own."""

    #: Instructions, with the place of the question.
    prompt: ClassVar[str]
    thought_tag: ClassVar[str]
    #: Around what a search found.
    found_tag: ClassVar[str]
    #: The tag of each kind of decision.
    tag_of: ClassVar[dict[ActionKind, str]]

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the grammar."""
        return (self.thought_tag, self.found_tag, *self.tag_of.values())

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The transcript so far; passages of the last query are appended."""
        if not trajectory.steps:
            return (prompt_segment(self.prompt.format(question=neutralise(trajectory.question.text))),)
        context = trajectory.context()
        last = trajectory.steps[-1]
        if last.action.kind is ActionKind.QUERY:
            found = render_passages(last.passages)
            return (*context, environment_segment(f"\n<{self.found_tag}>\n{found}\n</{self.found_tag}>\n"))
        return context

    def parse(self, text: str, trajectory: Trajectory) -> Action:  # noqa: ARG002
        """A thought and a decision, or malformed."""
        blocks = read_blocks(text, self.tags)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        kinds = {tag: kind for kind, tag in self.tag_of.items()}
        if len(blocks) != 2 or blocks[0].tag != self.thought_tag or blocks[1].tag not in kinds:
            decisions = ", ".join(f"<{tag}>" for tag in kinds)
            return malformed(text, f"expected <{self.thought_tag}> and then one of {decisions}")
        thought, decision = blocks
        if not decision.content:
            return malformed(text, f"empty <{decision.tag}>")
        return Action(kinds[decision.tag], decision.content, thought.content)

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """Thought and decision in their tags."""
        thought = write_block(self.thought_tag, action.thought, self.tags)
        return thought + write_block(self.tag_of[action.kind], action.content, self.tags)
