"""Memory-mapped passages on disk: millions of them take almost no memory.

In: passages, one at a time, through `PassageWriter`. Out: `PassageStore`, which memory-maps the files and decodes
passages by position. The files: `passages.jsonl`, which `read_corpus` reads as well, and `passages.offsets.npy`, the
byte offset of each line.
"""

import json
import mmap
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage

_LINES, _OFFSETS = "passages.jsonl", "passages.offsets.npy"


class Passages(Protocol):
    """Passages by position: a tuple or a `PassageStore`."""

    def __len__(self) -> int: ...
    def __getitem__(self, position: int, /) -> Passage: ...
    def __iter__(self) -> Iterator[Passage]: ...


class PassageWriter:
    """Writes passages into a folder, one at a time. A context manager; the files are complete on exit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / _LINES).open("wb")
        self._offsets = array("Q", [0])

    def add(self, passage: Passage) -> None:
        """Append a passage, without its score."""
        fields = {"id": passage.id, "title": passage.title, "text": passage.text}
        # surrogatepass: one lone surrogate must not stop a long build.
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
        self._file.write(line)
        self._offsets.append(self._offsets[-1] + len(line))

    def __enter__(self) -> "PassageWriter":
        return self

    def __exit__(self, failed: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        if not failed:
            np.save(self._folder / _OFFSETS, np.frombuffer(self._offsets, dtype=np.uint64))


class PassageStore:
    """Passages written by a `PassageWriter`, by position. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        with (folder / _LINES).open("rb") as file:
            self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        # A plain array view: slicing a memmap is slow.
        self._offsets = np.asarray(np.load(folder / _OFFSETS, mmap_mode="r"))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def is_complete(self) -> bool:
        """Whether the file has the length it was written with."""
        return int(self._offsets[-1]) == len(self._lines)

    def __getitem__(self, position: int) -> Passage:
        if not 0 <= position < len(self):
            raise IndexError(f"passage {position} is out of range: there are passages 0 to {len(self) - 1}")
        start, end = self._offsets[position], self._offsets[position + 1]
        try:
            return Passage(**json.loads(self._lines[start:end]))
        except (ValueError, TypeError) as error:
            raise StepladderError(f"the index is damaged: passage {position} cannot be read; build it again") from error

    def __iter__(self) -> Iterator[Passage]:
        return (self[position] for position in range(len(self)))

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
