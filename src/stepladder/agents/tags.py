"""Text made of tagged blocks, such as `<step>...</step><answer>...</answer>`: written, and read without raising."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """`<tag>content</tag>`, the content without surrounding space."""

    tag: str
    content: str


def read_blocks(text: str, tags: tuple[str, ...]) -> tuple[Block, ...] | str:
    """The blocks of a text that consists of nothing else, or what is wrong with it.

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
    """The text of a block that `read_blocks` gives back. Tags of the grammar in the content lose their brackets.

    >>> write_block("answer", "List<String> </answer>", ("step", "answer"))
    '<answer>List<String> ‹/answer></answer>'
    """
    harmless = re.sub(rf"<(?=/?({'|'.join(tags)})>)", "‹", content)
    return f"<{tag}>{harmless}</{tag}>"
