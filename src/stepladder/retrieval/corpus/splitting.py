"""Split texts into passages of a bounded number of words, each beginning with the last words of the one before.

In: the lines of a text or Markdown file, one at a time. Out: `Chunk`s, in order. Sentences and fenced code stay whole
where they fit; what does not fit is cut between lines, and a line that does not fit between words, never inside one.
A word is what stands between white space. The layout of lines is kept, several blank lines become one.

Of Markdown, headings (`#` to `######`) and fences are understood, the rest is text. A piece never goes past a
heading: the headings above it are its title.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from stepladder.core.errors import StepladderError

_TOKEN = re.compile(r"\s*\S+")
_SENTENCE_END = re.compile(r"""[.!?…。！？]["'”’»)\]*_]*\s*\Z""")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:\s|\Z)")
_FENCE = re.compile(r"\s*(`{3,}(?!.*`)|~{3,})")

#: Words that stay together where they fit, each with the white space before it, the last of a line with its end.
_Unit = list[str]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text that is short enough to be a passage."""

    #: The headings above it, "Heading > Subheading"; empty where there are none.
    title: str
    text: str
    #: How many words at its beginning are the last words of the piece before.
    carried: int


def check_chunk_sizes(words: int, overlap: int) -> None:
    """Refuse sizes that no text can be split into."""
    if words < 1 or not 0 <= overlap < words:
        raise StepladderError(
            f"passages of {words} words that overlap by {overlap} are not possible: expected at least 1 word, "
            "and an overlap from 0 to below the number of words, for instance 100 and 20"
        )


def split_text(lines: Iterable[str], words: int, overlap: int) -> Iterator[Chunk]:
    """The pieces of plain text.

    >>> [piece.text for piece in split_text(["One two. Three four.", "Five six."], words=5, overlap=1)]
    ['One two. Three four.', 'four.\\nFive six.']
    """
    check_chunk_sizes(words, overlap)
    yield from _pieces("", _sentences(lines, words), words, overlap)


def split_markdown(lines: Iterable[str], words: int, overlap: int) -> Iterator[Chunk]:
    """The pieces of Markdown. A heading with nothing below it is a piece without text.

    >>> [(piece.title, piece.text) for piece in split_markdown(["# Orla", "## Bridges", "Two."], words=5, overlap=1)]
    [('Orla > Bridges', 'Two.')]
    """
    check_chunk_sizes(words, overlap)
    for title, body in _sections(lines):
        yield from _pieces(title, _sentences_and_fences(body, words), words, overlap)


def _pieces(title: str, units: Iterable[_Unit], words: int, overlap: int) -> Iterator[Chunk]:
    piece: list[str] = []
    carried = 0
    for unit in _fitting(units, words):
        if len(piece) + len(unit) > words:
            yield Chunk(title, "".join(piece).strip(), carried)
            # A unit that fits is worth more than the overlap: less is carried over where both are too much.
            carried = min(overlap, words - len(unit), len(piece))
            piece = piece[len(piece) - carried :]
        piece += unit
    if piece or title:
        yield Chunk(title, "".join(piece).strip(), carried)


def _fitting(units: Iterable[_Unit], words: int) -> Iterator[_Unit]:
    """The units, those of too many words as lines, and lines of too many words as words."""
    for unit in units:
        if len(unit) <= words:
            yield unit
            continue
        line: _Unit = []
        for token in unit:
            line.append(token)
            if token.endswith("\n"):
                yield from [line] if len(line) <= words else ([each] for each in line)
                line = []
        yield from [line] if len(line) <= words else ([each] for each in line)


def _sentences(lines: Iterable[str], words: int) -> Iterator[_Unit]:
    sentence: _Unit = []
    for token in _tokens(lines):
        # What fits no longer is cut between lines anyway: a file without sentences need not be held in memory.
        too_long = len(sentence) > words and sentence[-1].endswith("\n")
        if sentence and (too_long or token.startswith("\n") or _SENTENCE_END.search(sentence[-1])):
            yield sentence
            sentence = []
        sentence.append(token)
    yield sentence


def _tokens(lines: Iterable[str]) -> Iterator[str]:
    """Words with the white space before them. Behind blank lines it begins with a line end."""
    blank = ""
    for line in lines:
        tokens = _TOKEN.findall(line.rstrip())
        if not tokens:
            blank = "\n"
            continue
        tokens[0] = blank + tokens[0]
        tokens[-1] += "\n"
        blank = ""
        yield from tokens


def _sections(lines: Iterable[str]) -> Iterator[tuple[str, list[tuple[int, str]]]]:
    """The lines below each heading, with the number of the fence that a line is in, and the headings above.

    A heading with nothing but deeper headings below it is left out: it stands in their titles.
    """
    path: list[tuple[int, str]] = []
    body: list[tuple[int, str]] = []

    def title() -> str:
        return " > ".join(name for _, name in path if name)

    for fence, line in _fences(lines):
        heading = None if fence else _HEADING.match(line)
        if heading is None:
            body.append((fence, line))
            continue
        level = len(heading[1])
        if any(each.strip() for _, each in body) or (path and path[-1][0] >= level):
            yield title(), body
        body = []
        while path and path[-1][0] >= level:
            path.pop()
        path.append((level, _without_closing_marks(line[heading.end() :].strip())))
    yield title(), body


def _without_closing_marks(heading: str) -> str:
    """A heading may end in marks as well, "## Bridges ##"."""
    bare = heading.rstrip("#")
    return bare.rstrip() if not bare or bare[-1].isspace() else heading


def _fences(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines, each with the number of the fence it is in; 0 outside of fences."""
    opened = ""
    number = 0
    for line in lines:
        if not opened:
            fence = _FENCE.match(line)
            opened, number = (fence[1], number + 1) if fence else ("", number)
            yield number if fence else 0, line
        else:
            yield number, line
            mark = line.strip()
            if mark.startswith(opened) and not mark.strip(opened[0]):
                opened = ""


def _sentences_and_fences(body: Iterable[tuple[int, str]], words: int) -> Iterator[_Unit]:
    for fence, numbered in groupby(body, key=lambda each: each[0]):
        lines = (line for _, line in numbered)
        yield from [list(_tokens(lines))] if fence else _sentences(lines, words)
