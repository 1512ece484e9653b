"""Shared parts of the export formats: the texts of a pair, files of rows, and the contract of a format.

In: pairs. Out: the texts that other programs train on. All exported text comes from segments; nothing is decoded from
token ids.
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
    """Pairs that cannot be exported, or a folder that must not be overwritten."""


Row = dict[str, Any]
#: Turns a pair into a row of a file, or into None for no row.
RowMaker = Callable[[Pair], Row | None]


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The texts of a pair. `prompt + transcript + chosen` is exactly what the policy read and wrote."""

    #: The agent's prompt. For a chat model it is the user message in the chat template.
    prompt: str
    #: The text of policy and environment since; empty if every step starts with a new prompt.
    transcript: str
    chosen: str
    rejected: str

    @property
    def context(self) -> str:
        """Everything that the policy saw."""
        return self.prompt + self.transcript


def pair_texts(pair: Pair) -> PairTexts:
    """The texts of a pair; raises an error if its context does not start with a prompt."""
    prompt, *rest = pair.context or (None,)
    if prompt is None or prompt.author is not Author.PROMPT or not prompt.text:
        raise ExportError(
            f"the pair of question {pair.question_id!r} at depth {pair.depth} has no prompt: expected a context that "
            "starts with a prompt segment, as all agents of Stepladder render it"
        )
    transcript = "".join(segment.text for segment in rest)
    return PairTexts(prompt.text, transcript, pair.chosen.written.text, pair.rejected.written.text)


class Deduplicated:
    """Keeps only the first of equal rows: one step can be preferred to several siblings."""

    def __init__(self, make: RowMaker) -> None:
        self._make = make
        self._seen: set[bytes] = set()

    def __call__(self, pair: Pair) -> Row | None:
        """The row of a pair; None if an equal row came before."""
        row = self._make(pair)
        digest = blake2b(json.dumps(row).encode(), digest_size=16).digest()
        if digest in self._seen:
            return None
        self._seen.add(digest)
        return row


def write_rows(folder: Path, pairs: Iterable[Pair], files: Mapping[str, RowMaker]) -> dict[str, int]:
    """Write several files in one pass over the pairs: a JSON array for `.json`, else JSONL. Returns row counts."""
    with ExitStack() as stack:
        rows = {name: stack.enter_context(_RowFile(folder / name)) for name in files}
        for pair in pairs:
            for name, make in files.items():
                if (row := make(pair)) is not None:
                    rows[name].add(row)
    return {name: file.count for name, file in rows.items()}


class _RowFile:
    """A file with one row per line."""

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
    """The files that a format wrote, and the text of its card."""

    #: Rows by data file.
    rows: dict[str, int]
    #: How to use the folder, in Markdown.
    usage: str
    #: YAML front matter of the card, for formats that need it.
    header: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """An export format."""

    #: One line for lists of formats.
    summary: str
    #: (empty folder, pairs by split, model or None) -> the files. Reads each split once.
    write: Callable[[Path, Mapping[str, Iterable[Pair]], str | None], ExportFiles]
