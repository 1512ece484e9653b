"""What all export formats share: the texts of a pair, files of rows, and the contract of a format.

In: pairs, as records hold them. Out: the texts that other programs train on. Everything exported is text that a segment
holds; nothing is decoded from tokens.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Author, Pair


class ExportError(StepladderError):
    """Pairs that cannot be exported, or a folder that must not be written over."""


Row = dict[str, Any]
#: Turns a pair into a row of a file, or into None where the file needs none for it.
RowMaker = Callable[[Pair], Row | None]


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The words of a pair. `prompt + transcript + chosen` is what the policy read and wrote, to the letter."""

    #: The agent's prompt. A chat model reads it as a user's message, inside its chat template.
    prompt: str
    #: What policy and environment have written since; empty where every step begins with a new prompt.
    transcript: str
    chosen: str
    rejected: str

    @property
    def context(self) -> str:
        """All that the policy had in view."""
        return self.prompt + self.transcript


def texts(pair: Pair) -> PairTexts:
    """The words of a pair; an error when there is no prompt to begin with."""
    prompt, *rest = pair.context or (None,)
    if prompt is None or prompt.author is not Author.PROMPT or not prompt.text:
        raise ExportError(
            f"the pair of question {pair.question_id!r} at depth {pair.depth} has no prompt: expected a context that "
            "begins with a prompt segment, as every agent of Stepladder renders it"
        )
    transcript = "".join(segment.text for segment in rest)
    return PairTexts(prompt.text, transcript, pair.chosen.written.text, pair.rejected.written.text)


class Deduplicated:
    """Passes each row on the first time only: one step can be preferred to several of its siblings."""

    def __init__(self, make: RowMaker) -> None:
        self._make = make
        self._seen: set[bytes] = set()

    def __call__(self, pair: Pair) -> Row | None:
        """The row of a pair, unless an equal one came before."""
        row = self._make(pair)
        digest = blake2b(json.dumps(row).encode(), digest_size=16).digest()
        if digest in self._seen:
            return None
        self._seen.add(digest)
        return row


def write_rows(folder: Path, pairs: Iterable[Pair], files: Mapping[str, RowMaker]) -> dict[str, int]:
    """Write several files in one pass over the pairs, and count their rows: a JSON array for `.json`, else JSONL."""
    with ExitStack() as stack:
        rows = {name: stack.enter_context(_RowFile(folder / name)) for name in files}
        for pair in pairs:
            for name, make in files.items():
                if (row := make(pair)) is not None:
                    rows[name].add(row)
    return {name: file.count for name, file in rows.items()}


class _RowFile:
    """A file of rows, one a line."""

    def __init__(self, path: Path) -> None:
        array = path.suffix == ".json"
        self._between, self._end = (",\n", "\n]\n") if array else ("\n", "\n")
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8", newline="\n")
        self._file.write("[\n" if array else "")
        self.count = 0

    def add(self, row: Row) -> None:
        self._file.write((self._between if self.count else "") + json.dumps(row, ensure_ascii=False))
        self.count += 1

    def __enter__(self) -> "_RowFile":
        return self

    def __exit__(self, *failure: object) -> None:
        self._file.write(self._end)
        self._file.close()


@dataclass(frozen=True, slots=True)
class ExportFiles:
    """What a format wrote into a folder, and what its card says about it."""

    #: Rows by data file.
    rows: dict[str, int]
    #: How to use the folder, in Markdown.
    usage: str
    #: YAML for the head of the card, where readers of the format expect some.
    header: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """One way to hand pairs to other programs."""

    #: One line for people who choose a format.
    summary: str
    #: (empty folder, pairs by split, model or None) -> what was written. Reads each split once.
    write: Callable[[Path, Mapping[str, Iterable[Pair]], str | None], ExportFiles]
