"""Split texts into overlapping chunks with a maximum number of words.

In: the lines of a text or Markdown file, one at a time. Out: `Chunk`s, in order. Sentences and fenced code are kept
together if they fit; otherwise they are split between lines, and long lines between words, never inside a word. A word
is delimited by whitespace. Line breaks are kept; several blank lines become one.

For Markdown, headings (`#` to `######`) and fences are parsed, the rest is text. A chunk never crosses a heading: the
headings above it are its title.
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

#: The title of a part of a document, and its lines.
Section = tuple[str, Iterable[str]]
#: Words that stay together if they fit, each with the whitespace before it, the last of a line with its line break.
_Unit = list[str]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a text, short enough to be a passage."""

    #: The headings above it, "Heading > Subheading"; empty without headings.
    title: str
    text: str
    #: Number of words at its start that repeat the end of the previous chunk.
    overlap: int


def check_chunk_sizes(words: int, overlap: int) -> None:
    """Reject invalid chunk sizes."""
    if words < 1 or not 0 <= overlap < words:
        raise StepladderError(
            f"passages of {words} words with an overlap of {overlap} are not possible: expected at least 1 word, "
            "and an overlap of at least 0 and below the number of words, for instance 100 and 20"
        )


def split_text(lines: Iterable[str], words: int, overlap: int) -> Iterator[Chunk]:
    """The chunks of plain text.

    >>> [chunk.text for chunk in split_text(["One two. Three four.", "Five six."], words=5, overlap=1)]
    ['One two. Three four.', 'four.\\nFive six.']
    """
    check_chunk_sizes(words, overlap)
    yield from _chunks("", _sentences(lines, words), words, overlap)


def split_markdown(lines: Iterable[str], words: int, overlap: int) -> Iterator[Chunk]:
    """The chunks of Markdown. A heading with nothing below it is a chunk without text.

    >>> [(chunk.title, chunk.text) for chunk in split_markdown(["# Orla", "## Bridges", "Two."], words=5, overlap=1)]
    [('Orla > Bridges', 'Two.')]
    """
    check_chunk_sizes(words, overlap)
    for title, body in _sections(lines):
        yield from _chunks(title, _sentences_and_fences(body, words), words, overlap)


def split_sections(sections: Iterable[Section], words: int, overlap: int) -> Iterator[Chunk]:
    """The chunks of sections, in order. A chunk never crosses a section.

    >>> [(chunk.title, chunk.text) for chunk in split_sections([("page 1", ["A."]), ("page 2", ["B."])], 5, 1)]
    [('page 1', 'A.'), ('page 2', 'B.')]
    """
    check_chunk_sizes(words, overlap)
    for title, lines in sections:
        yield from _chunks(title, _sentences(lines, words), words, overlap)


def by_heading(blocks: Iterable[tuple[int, str]]) -> Iterator[Section]:
    """Sections, from lines of text (level 0) and headings (level 1 and deeper): the headings above are the title.

    Sections are read one at a time, in constant memory. As in Markdown, a heading directly followed by a deeper one has
    no section of its own.

    >>> [(title, list(lines)) for title, lines in by_heading([(1, "Orla"), (2, "Bridges"), (0, "Two.")])]
    [('Orla > Bridges', ['Two.'])]
    """
    for (_, title), lines in groupby(_under_headings(blocks), key=lambda each: each[0]):
        yield title, (line for _, line in lines)


def _under_headings(blocks: Iterable[tuple[int, str]]) -> Iterator[tuple[tuple[int, str], str]]:
    """The lines of text, each with the number and the title of its section; an empty line for one without text."""
    path: list[tuple[int, str]] = []
    section, empty = (0, ""), True
    for level, text in blocks:
        if level:
            if empty and path and path[-1][0] >= level:
                yield section, ""
            path = [*(each for each in path if each[0] < level), (level, text)]
            section, empty = (section[0] + 1, " > ".join(name for _, name in path if name)), True
        elif not empty or text.strip():
            empty = False
            yield section, text
    if empty and path:
        yield section, ""


def _chunks(title: str, units: Iterable[_Unit], words: int, overlap: int) -> Iterator[Chunk]:
    chunk: list[str] = []
    carried = 0
    for unit in _fitting(units, words):
        if len(chunk) + len(unit) > words:
            yield Chunk(title, "".join(chunk).strip(), carried)
            # Keeping a unit together takes precedence over the full overlap.
            carried = min(overlap, words - len(unit), len(chunk))
            chunk = chunk[len(chunk) - carried :]
        chunk += unit
    if chunk or title:
        yield Chunk(title, "".join(chunk).strip(), carried)


def _fitting(units: Iterable[_Unit], words: int) -> Iterator[_Unit]:
    """The units, with units that are too long split into lines, and lines that are too long into words."""
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
        # Units that are too long are split between lines anyway: a file without sentences stays out of memory.
        too_long = len(sentence) > words and sentence[-1].endswith("\n")
        if sentence and (too_long or token.startswith("\n") or _SENTENCE_END.search(sentence[-1])):
            yield sentence
            sentence = []
        sentence.append(token)
    yield sentence


def _tokens(lines: Iterable[str]) -> Iterator[str]:
    """Words with the whitespace before them, which starts with a line break after blank lines."""
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
    """For each section its title (the headings above it) and its lines, each with the number of its fence.

    A heading directly followed by a deeper heading is skipped: it is part of the deeper title.
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
    """Remove closing marks, as in "## Bridges ##"."""
    bare = heading.rstrip("#")
    return bare.rstrip() if not bare or bare[-1].isspace() else heading


def _fences(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The lines, each with the number of its fence; 0 outside of fences."""
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
