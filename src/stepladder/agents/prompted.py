"""Agents whose steps each read a prompt of their own, in which the history stands as text.

    begin_reasoning     question                                          -> search or answer
    document_analysis   question, history, passages of the last query     -> what they tell
    reasoning           question, history                                 -> search or answer
    answer_generation   question, history, after the last search allowed  -> answer

Which one is due follows from the steps alone. Passages are seen once, by the step that says what they tell, so contexts
stay short. A step is free thought and then exactly one block, in tags that tell what it is.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from stepladder.agents.base import Agent, malformed, neutralise, one_line, prompt_segment, render_passages
from stepladder.agents.tags import read_blocks, write_block
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory

#: Tags around passages in prompts, which no policy may write.
PASSAGES_TAG = "retrieval"


class State(StrEnum):
    """What is due next. Each state has its prompt in `Prompts`, by the same name."""

    BEGIN_REASONING = "begin_reasoning"
    DOCUMENT_ANALYSIS = "document_analysis"
    REASONING = "reasoning"
    ANSWER_GENERATION = "answer_generation"


@dataclass(frozen=True, slots=True)
class Prompts:
    """One prompt a state, with the places of `question`, `history`, `query` (the last) and `passages` (what it found).

    A history ends its last line.
    """

    begin_reasoning: str
    document_analysis: str
    reasoning: str
    answer_generation: str


class Prompted(Agent):
    """Free thought, then a query, what passages tell, or an answer, each in its turn and its tag."""

    prompts: ClassVar[Prompts]
    #: The tag of each kind of decision. What is neither query nor answer is what passages tell.
    tag_of: ClassVar[dict[ActionKind, str]]
    #: Searches before an answer is demanded; an episode that makes them all has 2 x `iterations` + 1 steps.
    iterations: ClassVar[int] = 8

    def state(self, trajectory: Trajectory) -> State:
        """What is due after these steps."""
        if not trajectory.steps:
            return State.BEGIN_REASONING
        if trajectory.steps[-1].action.kind is ActionKind.QUERY:
            return State.DOCUMENT_ANALYSIS
        return State.REASONING if len(trajectory.queries) < self.iterations else State.ANSWER_GENERATION

    def allowed(self, state: State) -> frozenset[ActionKind]:
        """What a step may be in a state."""
        if state is State.DOCUMENT_ANALYSIS:
            return self.kinds - {ActionKind.QUERY, ActionKind.ANSWER}
        return frozenset(
            {ActionKind.ANSWER} if state is State.ANSWER_GENERATION else {ActionKind.QUERY, ActionKind.ANSWER}
        )

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The prompt of the state, a single segment: nothing is carried over but what it quotes."""
        prompt: str = getattr(self.prompts, self.state(trajectory))
        last = trajectory.steps[-1] if trajectory.steps else None
        text = prompt.format(
            question=self.quoted_question(trajectory),
            history="".join(self.quoted(step.action) for step in trajectory.steps),
            query=one_line(last.action.content) if last is not None else "",
            passages=render_passages(last.passages if last is not None else ()),
        )
        return (prompt_segment(text),)

    def quoted_question(self, trajectory: Trajectory) -> str:
        """The question as it stands in a prompt."""
        return neutralise(trajectory.question.text)

    def quoted(self, action: Action) -> str:
        """An earlier step as the policy wrote it, but with no tag in it beside its own and no line broken."""
        return self._text(action.kind, one_line(action.content), one_line(action.thought)) + "\n"

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """A decision in its turn, or malformed."""
        tags = (PASSAGES_TAG, *self.tag_of.values())
        kinds = {tag: kind for kind, tag in self.tag_of.items()}
        mark = re.search(rf"</?({'|'.join(tags)})>", text)
        if mark is None:
            *others, last = (f"<{tag}>" for tag in kinds)
            return malformed(text, f"no {', '.join(others)} or {last}" if text.strip() else "nothing was written")
        blocks = read_blocks(text[mark.start() :], tags)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        decision = blocks[0]
        if len(blocks) > 1:
            return malformed(text, f"<{blocks[1].tag}> after <{decision.tag}>: expected a single block")
        if decision.tag not in kinds:
            return malformed(text, f"<{decision.tag}> is not for the policy to write")
        if not decision.content:
            return malformed(text, f"empty <{decision.tag}>")
        state, kind = self.state(trajectory), kinds[decision.tag]
        if kind not in self.allowed(state):
            due = " or ".join(f"<{tag}>" for tag, each in kinds.items() if each in self.allowed(state))
            return malformed(text, f"<{decision.tag}> where {due} is due ({state})")
        return Action(kind, decision.content, text[: mark.start()].strip())

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """The thought, then the decision in its tag on a line of its own."""
        return self._text(action.kind, action.content, neutralise(action.thought))

    def _text(self, kind: ActionKind, content: str, thought: str) -> str:
        block = write_block(self.tag_of[kind], content, (PASSAGES_TAG, *self.tag_of.values()))
        return f"{thought}\n{block}" if thought else block
