"""Text made of tagged blocks, such as `<step>...</step><answer>...</answer>`, and agents whose actions are blocks."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from stepladder.agents.base import Agent
from stepladder.core.trace import ActionKind


class TaggedAgent(Agent):
    """An agent whose actions are blocks. `kinds` and `stops` follow from `tag_of` unless the class sets them."""

    #: The tag of each kind of action.
    tag_of: ClassVar[dict[ActionKind, str]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "tag_of" in vars(cls):
            cls.kinds = vars(cls).get("kinds", frozenset(cls.tag_of))
            cls.stops = vars(cls).get("stops", tuple(f"</{tag}>" for tag in cls.tag_of.values()))


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
    opening = re.compile(rf"<({'|'.join(tags)})>")
    marker = re.compile(rf"</?({'|'.join(tags)})>")
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


def write_block(tag: str, content: str, tags: tuple[str, ...]) -> str:
    """The text of a block that `read_blocks` parses back. Tags of the grammar inside the content lose their brackets.

    >>> write_block("answer", "List<String> </answer>", ("step", "answer"))
    '<answer>List<String> ‹/answer></answer>'
    """
    escaped = re.sub(rf"<(?=/?({'|'.join(tags)})>)", "‹", content)
    return f"<{tag}>{escaped}</{tag}>"
