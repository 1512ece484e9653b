"""Text made of tagged blocks, such as `<step>...</step><answer>...</answer>`, and agents whose actions are blocks."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from stepladder.agents.base import Agent, environment_segment, malformed, prompt_segment, render_passages, show_question
from stepladder.agents.formats.lenient import first_block
from stepladder.agents.formats.step_grammars import block_grammar, tagged_thought
from stepladder.core.grammars.grammar import Grammar
from stepladder.core.trace import Action, ActionKind, Segment, Trajectory


class TaggedAgent(Agent):
    """An agent whose actions are blocks. `kinds` and `stops` follow from `tag_of` unless the class sets them."""

    #: The tag of each kind of action.
    tag_of: ClassVar[dict[ActionKind, str]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "passages_tag" in vars(cls):  # a transcript, in which every turn begins with a tagged thought
            cls.observation_openings = (f"<{vars(cls)['passages_tag']}>",)
            cls.turn_opening = f"<{cls.thought_tag}>"
            cls.query_opening = f"<{cls.tag_of[ActionKind.QUERY]}>" if ActionKind.QUERY in cls.tag_of else ""
        if "tag_of" in vars(cls):
            cls.kinds = vars(cls).get("kinds", frozenset(cls.tag_of))
            cls.answer_opening = vars(cls).get("answer_opening", f"<{cls.tag_of.get(ActionKind.ANSWER, 'answer')}>")
            cls.stops = vars(cls).get("stops", tuple(f"</{tag}>" for tag in cls.tag_of.values()))

    def find_action(self, text: str, trajectory: Trajectory) -> Action | None:  # noqa: ARG002
        """The first block of an action, whatever is around it."""
        found = first_block(text, tuple(self.tag_of.values()), self.markup)
        if found is None:
            return None
        kinds = {tag: kind for kind, tag in self.tag_of.items()}
        return Action(kinds[found.tag], found.content, found.thought)


@dataclass(frozen=True, slots=True)
class Block:
    """`<tag>content</tag>`, the content stripped of surrounding whitespace."""

    tag: str
    content: str


def read_blocks(text: str, tags: tuple[str, ...]) -> tuple[Block, ...] | str:
    """The blocks of a text that consists only of blocks, or a description of the problem. Never raises.

    >>> read_blocks("<step>Look it up.</step> <answer>Rome</answer>", ("step", "answer"))
    (Block(tag='step', content='Look it up.'), Block(tag='answer', content='Rome'))
    >>> read_blocks("<step>Hm <answer>Rome</answer>", ("step", "answer"))
    '<step> is not closed'
    """
    opening, marker = _patterns(tags)
    blocks: list[Block] = []
    rest = text.strip()
    while rest:
        start = opening.match(rest)
        if start is None:
            return f"text outside tags: {rest[:40]!r}"
        tag = start[1]
        content, closing, rest = rest[start.end() :].partition(f"</{tag}>")
        if not closing:
            return f"<{tag}> is not closed"
        inner = marker.search(content)
        if inner is not None:
            return f"{inner[0]} inside <{tag}>"
        blocks.append(Block(tag, content.strip()))
        rest = rest.strip()
    return tuple(blocks) if blocks else "nothing was written"


@cache
def _patterns(tags: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of an opening tag, and of any tag."""
    return re.compile(rf"<({'|'.join(tags)})>"), re.compile(rf"</?({'|'.join(tags)})>")


def write_block(tag: str, content: str, tags: tuple[str, ...]) -> str:
    """The text of a block that `read_blocks` parses back. Tags of the grammar inside the content lose their brackets.

    >>> write_block("answer", "List<String> </answer>", ("step", "answer"))
    '<answer>List<String> ‹/answer></answer>'
    """
    escaped = re.sub(rf"<(?=/?({'|'.join(tags)})>)", "‹", content)
    return f"<{tag}>{escaped}</{tag}>"


class TranscriptAgent(TaggedAgent):
    """An agent whose context is one growing transcript: each step is a thought and an action, both in tags.

    The environment writes the retrieved passages, the policy everything else (`search_r1.py` shows a transcript). A
    subclass defines the tags and the order in which actions may come.
    """

    #: Instructions, with a slot for the question.
    prompt: ClassVar[str]
    #: The tag around retrieved passages.
    passages_tag: ClassVar[str]

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags of the grammar."""
        return (self.thought_tag, self.passages_tag, *self.tag_of.values())

    @property
    def markup(self) -> tuple[str, ...]:
        """All tags of the grammar."""
        return self.tags

    def grammar(self, trajectory: Trajectory, *, forced: bool = False) -> Grammar:
        """A thought and one of the actions that may follow."""
        due = self.due(trajectory, forced=forced)
        tags = [tag for kind, tag in self.tag_of.items() if kind in due]
        return block_grammar(tagged_thought(self.thought_tag), tags)

    def render(self, trajectory: Trajectory) -> tuple[Segment, ...]:
        """The transcript so far, with the passages of the last query appended."""
        if not trajectory.steps:
            return (prompt_segment(self.prompt.format(question=show_question(trajectory.question))),)
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
