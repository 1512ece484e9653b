"""Agents that build a new prompt for every step. The prompt contains the history as text.

    begin_reasoning     question                                          -> query or answer
    document_analysis   question, history, passages of the last query     -> summary of the passages
    reasoning           question, history                                 -> query or answer
    answer_generation   question, history, after the last search allowed  -> answer

The steps so far determine which prompt is next. Passages appear in the prompt of the step that summarizes them, which
keeps contexts short, and once more where only the answer may follow, if its prompt has a slot for them. A step is free
thought and then exactly one block, whose tag gives the kind of action.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from stepladder.agents.base import (
    malformed,
    neutralize,
    one_line,
    prompt_segment,
    render_passages,
    show_question,
    with_note,
)
from stepladder.agents.formats.lenient import first_block
from stepladder.agents.formats.step_grammars import THOUGHT, block_grammar
from stepladder.agents.tags import TaggedAgent, read_blocks, write_block
from stepladder.core.grammars.grammar import Grammar
from stepladder.core.trace import Action, ActionKind, Passage, Segment, Trajectory

#: Tag around passages in prompts. The policy may not write it.
PASSAGES_TAG = "retrieval"
#: The most characters of passages that a prompt shows again.
_SHOWN_AGAIN = 12_000


class State(StrEnum):
    """The state of an episode, which determines the next prompt."""

    BEGIN_REASONING = "begin_reasoning"
    DOCUMENT_ANALYSIS = "document_analysis"
    REASONING = "reasoning"
    ANSWER_GENERATION = "answer_generation"


#: One prompt per state, by its name, with slots for `question`, `history`, `query` (the last) and `passages` (its
#: results where they are summarized, those of all searches elsewhere). A history ends with a line break.
Prompts = Mapping[str, str]


class PromptedAgent(TaggedAgent):
    """Free thought, then a query, a summary of passages or an answer, in a tag and only in the right state.

    In `tag_of`, the kind that is neither query nor answer is the summary of passages.
    """

    prompts: ClassVar[Prompts]
    observation_openings: ClassVar[tuple[str, ...]] = (f"<{PASSAGES_TAG}>",)
    #: Most searches before an answer is required. An episode that uses them all has 2 x `iterations` + 1 steps.
    iterations: ClassVar[int] = 8

    def state(self, trajectory: Trajectory) -> State:
        """The state after these steps."""
        taken = [step for step in trajectory.steps if step.action.kind is not ActionKind.MALFORMED]
        if not taken:
            return State.BEGIN_REASONING
        if taken[-1].action.kind is ActionKind.QUERY:
            return State.DOCUMENT_ANALYSIS
        return State.REASONING if len(trajectory.queries) < self.iterations else State.ANSWER_GENERATION

    def allowed(self, state: State) -> frozenset[ActionKind]:
        """The kinds of action that are valid in a state."""
        if state is State.DOCUMENT_ANALYSIS:
            return self.kinds - {ActionKind.QUERY, ActionKind.ANSWER}
        return frozenset(
            {ActionKind.ANSWER} if state is State.ANSWER_GENERATION else {ActionKind.QUERY, ActionKind.ANSWER}
        )

    def expected(self, trajectory: Trajectory) -> frozenset[ActionKind]:
        """The kinds of action that are valid in the current state."""
        return self.allowed(self.state(trajectory))

    def grammar(self, trajectory: Trajectory, *, forced: bool = False) -> Grammar:
        """Free thought and one of the blocks that may follow."""
        due = self.due(trajectory, forced=forced)
        thought = () if self.play.prime and len(due) == 1 else (THOUGHT,)
        return block_grammar(thought, [tag for kind, tag in self.tag_of.items() if kind in due])

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The prompt of the state, as a single segment: the context restarts at every step."""
        return (prompt_segment(self._prompt(self.state(trajectory), trajectory)),)

    def context(self, trajectory: Trajectory, *, forced: bool = False) -> tuple[Segment, ...]:
        """As for other agents; a forced answer has a prompt of its own.

        It shows the passages of all searches or, if it has no slot for them, those that no step has read.
        """
        if not forced:
            return super().context(trajectory)
        context: tuple[Segment, ...] = (prompt_segment(self._prompt(State.ANSWER_GENERATION, trajectory)),)
        unread = trajectory.steps[-1].passages if trajectory.steps else ()
        if unread and "{passages}" not in self.prompts[State.ANSWER_GENERATION]:
            context = with_note(context, f"<{PASSAGES_TAG}>\n{render_passages(unread)}\n</{PASSAGES_TAG}>")
        return self.opened(context, trajectory, forced=True)

    def opening(self, trajectory: Trajectory, *, forced: bool) -> str:
        """The tag of the only kind of action that may follow, or of a query after slips alone; else free thought.

        After a slip, the beginning of a tag: the policy has thought already, and chooses the action.
        """
        if not self.play.opens_turns:
            return ""
        due = self.due(trajectory, forced=forced)
        if trajectory.steps and trajectory.slips == len(trajectory.steps) and not forced:
            due = frozenset({ActionKind.QUERY})
        if len(due) == 1:
            return "".join(f"<{self.tag_of[kind]}>" for kind in due)
        slipped = bool(trajectory.steps) and trajectory.steps[-1].action.kind is ActionKind.MALFORMED
        return "<" if slipped else ""

    def _prompt(self, state: State, trajectory: Trajectory) -> str:
        """The prompt of a state. Steps in which nothing was decided are not part of the history."""
        taken = [step for step in trajectory.steps if step.action.kind is not ActionKind.MALFORMED]
        last = taken[-1] if taken else None
        return self.prompts[state].format(
            question=self.render_question(trajectory),
            history="".join(self.render_action(step.action) for step in taken),
            query=one_line(last.action.content) if last is not None else "",
            passages=render_passages(
                last.passages if last is not None and state is State.DOCUMENT_ANALYSIS else _found(trajectory)
            ),
        )

    def render_question(self, trajectory: Trajectory) -> str:
        """The question as prompts show it."""
        return show_question(trajectory.question)

    def render_action(self, action: Action) -> str:
        """An action of an earlier step as the history shows it: with no tags but its own, on one line per part."""
        return self._text(action.kind, one_line(action.content), one_line(action.thought)) + "\n"

    def parse(self, text: str, trajectory: Trajectory) -> Action:
        """An action that is valid in the current state, or malformed."""
        tags = (PASSAGES_TAG, *self.tag_of.values())
        kinds = {tag: kind for kind, tag in self.tag_of.items()}
        mark = re.search(rf"</?({'|'.join(tags)})>", text)
        if mark is None:
            *others, last = (f"<{tag}>" for tag in kinds)
            return malformed(text, f"no {', '.join(others)} or {last}" if text.strip() else "nothing was written")
        blocks = read_blocks(text[mark.start() :], tags)
        if isinstance(blocks, str):
            return malformed(text, blocks)
        action = blocks[0]
        if len(blocks) > 1:
            return malformed(text, f"<{blocks[1].tag}> after <{action.tag}>: expected a single block")
        if action.tag not in kinds:
            return malformed(text, f"<{action.tag}> is not for the policy to write")
        if not action.content:
            return malformed(text, f"empty <{action.tag}>")
        state, kind = self.state(trajectory), kinds[action.tag]
        if kind not in self.allowed(state):
            due = " or ".join(f"<{tag}>" for tag, each in kinds.items() if each in self.allowed(state))
            return malformed(text, f"<{action.tag}> where {due} is due ({state})")
        return Action(kind, action.content, text[: mark.start()].strip())

    @property
    def markup(self) -> tuple[str, ...]:
        """All tags of the grammar."""
        return (PASSAGES_TAG, *self.tag_of.values())

    def find_action(self, text: str, trajectory: Trajectory) -> Action | None:
        """The first block that fits the state, or else the first query or answer."""
        due = tuple(self.tag_of[kind] for kind in self.tag_of if kind in self.expected(trajectory))
        kinds = {tag: kind for kind, tag in self.tag_of.items()}
        found = first_block(text, due, self.markup) if due != tuple(kinds) else None
        if found is not None:
            return Action(kinds[found.tag], found.content, found.thought)
        return self.fitting(super().find_action(text, trajectory), trajectory)

    def fitting(self, action: Action | None, trajectory: Trajectory) -> Action | None:
        """The action, unless it summarizes passages where there are none."""
        fits = action is not None and action.kind in {ActionKind.QUERY, ActionKind.ANSWER, *self.expected(trajectory)}
        return action if fits else None

    def write(self, action: Action, trajectory: Trajectory) -> str:  # noqa: ARG002
        """The thought, then the action in its tag on a line of its own."""
        return self._text(action.kind, action.content, neutralize(action.thought))

    def _text(self, kind: ActionKind, content: str, thought: str) -> str:
        block = write_block(self.tag_of[kind], content, (PASSAGES_TAG, *self.tag_of.values()))
        return f"{thought}\n{block}" if thought else block


def _found(trajectory: Trajectory) -> tuple[Passage, ...]:
    """The passages of all searches, each once; of many only the newest."""
    every = {passage.id: passage for step in trajectory.steps for passage in step.passages}
    room = _SHOWN_AGAIN
    newest: list[Passage] = []
    for passage in reversed(every.values()):
        room -= len(passage.text)
        if newest and room < 0:
            break
        newest.append(passage)
    return tuple(reversed(newest))
