"""Reading text that is not quite in an agent's format: pure functions, which never raise.

In: what the policy wrote. Out: the first complete action of it, or the answer in untagged text. Whatever the policy
wrote where passages belong is invented, and is not read (`before_observation`).
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

#: Content of a last block that is not closed: one line, and not longer than this.
_MAX_UNCLOSED = 300

_ANSWER_PHRASE = re.compile(
    r"\b(?:the|my|our|so|a)\s+(?:final\s+|short\s+|correct\s+)?answer(?:\s+to\s+the\s+question)?\s*(?:is\s*:|is\b|:)\s*"
    r"|(?:\bfinal\s+)?\banswer\s*(?:\*\*)?\s*:\s*",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\s*\{([^{}]*)\}")
#: Marks at the beginning of a line: of a list, a heading, or a turn of ReAct.
_LINE_MARK = re.compile(
    r"^\s*(?:[-*•]\s+|\d+[.)]\s+|#+\s+|(?:(?:thought|action)(?:\s*\d+)?\s*:\s*)+(?:finish\b[\s:\[]*)?|finish\s*:\s*)",
    re.IGNORECASE,
)


class Found(NamedTuple):
    """A tag with its content, and what was written before it."""

    tag: str
    content: str
    thought: str


def before_observation(text: str, openings: Iterable[str]) -> str:
    """The text before the first of the strings that open an observation: a policy cannot write its own passages.

    >>> before_observation("Let me see. <information>Rome is</information><answer>Rome</answer>", ["<information>"])
    'Let me see. '
    """
    places = [place for opening in openings if (place := text.find(opening)) >= 0]
    return text[: min(places)] if places else text


def first_block(text: str, tags: Sequence[str], others: Sequence[str] = ()) -> Found | None:
    """The first complete block with one of the tags and some content; else a last line that is not closed.

    `others`: tags of the grammar that are no actions. All tags are removed from content and thought.

    >>> first_block("I know: <answer> Rome </answer> done", ("search", "answer"))
    Found(tag='answer', content='Rome', thought='I know:')
    >>> first_block("<think>Hm.</think><search>capital of Italy", ("search", "answer"), ("think",))
    Found(tag='search', content='capital of Italy', thought='Hm.')
    """
    every = (*tags, *others)
    names = "|".join(map(re.escape, tags))
    blocks = re.finditer(rf"<\s*({names})\s*>(.*?)<\s*/\s*\1\s*>", text, re.DOTALL | re.IGNORECASE)
    for block in blocks:
        if content := without_tags(block[2], every):
            return Found(block[1].lower(), content, without_tags(text[: block.start()], every))
    # A tag in the middle of a line may only be named: "inside <answer> tags".
    *_, last = (None, *re.finditer(rf"(?:^|(?<=>))[ \t]*<\s*({names})\s*>", text, re.IGNORECASE | re.MULTILINE))
    if last is None:
        return None
    content = without_tags(text[last.end() :], every)
    if not content or "\n" in content or len(content) > _MAX_UNCLOSED:
        return None
    return Found(last[1].lower(), content, without_tags(text[: last.start()], every))


def without_tags(text: str, tags: Sequence[str]) -> str:
    """The text without these tags, stripped.

    >>> without_tags("<step>Look.</step> < Answer >Rome", ("step", "answer"))
    'Look. Rome'
    """
    return re.sub(rf"<\s*/?\s*(?:{'|'.join(map(re.escape, tags))})\s*/?\s*>", "", text, flags=re.IGNORECASE).strip()


def untagged(text: str, tags: Sequence[str], thought_tag: str = "") -> tuple[str, str]:
    """The thought and the rest of a text whose only possible action is not tagged.

    >>> untagged("<step>Rome is in Italy.</step> So: Italy", ("step", "answer"), "step")
    ('Rome is in Italy.', 'So: Italy')
    """
    thoughts: list[str] = []
    rest = text
    if thought_tag:
        block = rf"<\s*{re.escape(thought_tag)}\s*>(.*?)<\s*/\s*{re.escape(thought_tag)}\s*>"
        thoughts = [each.strip() for each in re.findall(block, rest, re.DOTALL | re.IGNORECASE)]
        rest = re.sub(block, "", rest, flags=re.DOTALL | re.IGNORECASE)
    rest = without_tags(rest, tags) or without_tags(text, tags)
    return " ".join(filter(None, thoughts)), rest


def answer_in(text: str, *, first: bool = False) -> tuple[str, str]:
    """The thought and the answer of untagged text: after "The answer is", in a box, or on the last (`first`) line.

    >>> answer_in("Rossellini was born in 1906.\\nTherefore, the answer is: **Rome**")
    ('Rossellini was born in 1906.\\nTherefore,', 'Rome')
    >>> answer_in("Rome\\n\\nIt is the capital of Italy.", first=True)
    ('', 'Rome')
    """
    for boxed in reversed(list(_BOXED.finditer(text))):
        if content := boxed[1].strip():
            return text[: boxed.start()].strip(), content
    for phrase in reversed(list(_ANSWER_PHRASE.finditer(text))):
        if said := next(filter(None, map(_plain, text[phrase.end() :].splitlines())), ""):
            return text[: phrase.start()].strip("* \n"), said
    lines = [line for line in text.splitlines() if _plain(line)]
    if not lines:
        return "", ""
    return ("", _plain(lines[0])) if first else ("\n".join(lines[:-1]).strip(), _plain(lines[-1]))


def _plain(line: str) -> str:
    """A line without list marks, Markdown emphasis and quotes around it."""
    return _LINE_MARK.sub("", line).strip().strip('*_`"“”').strip()
