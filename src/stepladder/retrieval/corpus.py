"""Read corpora: files of passages, in the layout that FlashRAG and Search-R1 read or with title and text apart.

In: a `.jsonl` or `.jsonl.gz` file with one of these a line; further keys are ignored:

    {"id": "7", "contents": "\\"Title\\"\\nText of the passage ..."}
    {"id": "7", "title": "Title", "text": "Text of the passage ..."}

Out: its `Passage`s, one at a time. What cannot be a passage is an error that names the file and the line.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from stepladder.errors import StepladderError
from stepladder.jsonl import Line, read_lines
from stepladder.trace import Passage


class CorpusError(StepladderError):
    """A corpus that cannot be read."""


def read_corpus(path: Path) -> Iterator[Passage]:
    """The passages of a corpus file, one at a time."""
    for key, line in read_lines(path, CorpusError):
        title, text = _title_and_text(line)
        if not title and not text:
            raise line.wrong("the passage is blank; expected some text")
        yield Passage(key, title, text)


def distinct(passages: Iterable[Passage]) -> Iterator[Passage]:
    """The passages as they come; an error when two have the same id, or when there are none."""
    first_seen: dict[str, int] = {}
    for position, passage in enumerate(passages):
        if passage.id in first_seen:
            raise CorpusError(
                f"passages {first_seen[passage.id]} and {position} have the same id {passage.id!r}; ids must differ"
            )
        first_seen[passage.id] = position
        yield passage
    if not first_seen:
        raise CorpusError("there are no passages")


def _title_and_text(line: Line) -> tuple[str, str]:
    if "contents" in line.data:
        title, newline, text = line.text("contents").partition("\n")
        return (_unquoted(title.strip()), text.strip()) if newline else ("", title.strip())
    if "text" in line.data:
        title = line.text("title") if line.data.get("title") is not None else ""
        return title.strip(), line.text("text").strip()
    keys = ", ".join(repr(key) for key in line.data)
    raise line.wrong(f"expected 'contents', or 'text' with or without 'title'; found the keys {keys}")


def _unquoted(title: str) -> str:
    quoted = len(title) >= 2 and title.startswith('"') and title.endswith('"')
    return title[1:-1].strip() if quoted else title
