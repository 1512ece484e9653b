"""Shared parts of the export formats: the texts of a pair, files of rows, and the contract of a format.

In: pairs. Out: the texts that other programs train on. All exported text comes from segments; nothing is decoded from
token ids.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, TextIO

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Author, Pair

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PairTexts:
    """The texts of a pair. `prompt + transcript + chosen` is exactly what the policy read and wrote."""

    #: The agent's prompt. For a chat model it is the user message in the chat template.
    prompt: str
    #: The text of policy and environment since; empty if every step starts with a new prompt.
    transcript: str
    chosen: str
    rejected: str
    pair: Pair

    @property
    def context(self) -> str:
        """Everything that the policy saw."""
        return self.prompt + self.transcript


def pair_texts(pair: Pair) -> PairTexts:
    """The texts of a pair; raises an error if its context does not start with a prompt."""
    prompt, *rest = pair.context or (None,)
    if prompt is None or prompt.author is not Author.PROMPT or not prompt.text:
        raise StepladderError(
            f"the pair of question {pair.question_id!r} at depth {pair.depth} has no prompt: expected a context that "
            "starts with a prompt segment, as all agents of Stepladder render it"
        )
    transcript = "".join(segment.text for segment in rest)
    return PairTexts(prompt.text, transcript, pair.chosen.written.text, pair.rejected.written.text, pair)


@dataclass(frozen=True, slots=True)
class RowFile:
    """A data file with one row per pair: a JSON array if its name ends in `.json`, else JSONL."""

    name: str
    row: Callable[[PairTexts], Row]
    #: Write equal rows once: one step can be preferred to several siblings.
    distinct: bool = False


@dataclass(frozen=True, slots=True)
class Format:
    """An export format. Its functions take the splits, in order, and the model to train if one was named."""

    #: split -> its data files
    data: Callable[[str], Sequence[RowFile]]
    #: How to use the folder, in Markdown.
    usage: Callable[[Sequence[str], str | None], str]
    #: Other files, by name.
    files: Callable[[Sequence[str], str | None], Mapping[str, str]] = lambda splits, model: {}  # noqa: ARG005
    #: YAML front matter of the card, for formats that need it.
    header: Callable[[Sequence[str]], str] = lambda splits: ""  # noqa: ARG005


def write_rows(folder: Path, pairs: Iterable[Pair], files: Sequence[RowFile]) -> tuple[int, dict[str, int]]:
    """Write data files in one pass over the pairs. Returns the number of pairs, and of rows by file."""
    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(_RowWriter(folder, file)) for file in files]
        for count, pair in enumerate(pairs, start=1):  # noqa: B007
            texts = pair_texts(pair)
            for writer in writers:
                writer.add(texts)
    return count, {writer.file.name: writer.count for writer in writers}


class _RowWriter:
    """Writes the rows of one file."""

    def __init__(self, folder: Path, file: RowFile) -> None:
        path = folder / file.name
        array = path.suffix == ".json"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file, self.count = file, 0
        self._seen: set[bytes] = set()
        self._between, self._end = (",\n", "\n]\n") if array else ("\n", "\n")
        self._stream: TextIO = path.open("w", encoding="utf-8", newline="\n")
        self._stream.write("[\n" if array else "")

    def add(self, texts: PairTexts) -> None:
        line = json.dumps(self.file.row(texts), ensure_ascii=False)
        if self.file.distinct:
            digest = blake2b(line.encode(errors="surrogatepass"), digest_size=16).digest()
            if digest in self._seen:
                return
            self._seen.add(digest)
        self._stream.write((self._between if self.count else "") + line)
        self.count += 1

    def __enter__(self) -> "_RowWriter":
        return self

    def __exit__(self, *failure: object) -> None:
        self._stream.write(self._end)
        self._stream.close()
