"""Marks on preference pairs: the user says that a pair is wrong.

In: the folder of pairs that a stage wrote, ids of pairs, notes. Out: `marks.json` beside that folder, and pairs without
the marked ones:

    {"stepladder_marks": 1, "marks": {"5f0c93a1b2d4e6f8": {"time": "2026-01-31T12:00:00+00:00", "note": "same query"}}}

The files of pairs are never rewritten. A pair is known by its content (`pair_id`): the mark stays valid when the pairs
are made again, and marks of pairs that no longer exist change nothing. The file is written atomically, and several
processes may write it.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from threading import Lock

from pydantic import ConfigDict, TypeAdapter, ValidationError

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.core.trace import Pair
from stepladder.core.unicode import replace_surrogates

#: The file beside a folder of pairs.
MARKS_FILE = "marks.json"
#: Most characters of a note.
MAX_NOTE = 2000

_VERSION_KEY, _VERSION = "stepladder_marks", 1
#: Of all writers in this process; `flock` holds between processes.
_writing = Lock()


@dataclass(frozen=True, slots=True)
class Mark:
    """The user's statement that a pair is wrong."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    #: When it was made, in UTC (ISO 8601).
    time: str
    note: str = ""


Marks = Mapping[str, Mark]
_MARKS = TypeAdapter(dict[str, Mark])


def pair_id(pair: Pair) -> str:
    """The id of a pair: a hash of its question, its agent and its texts.

    Judges, scores and token ids are not part of it: the same two steps in the same order are the same pair.
    """
    context = [[segment.author.value, segment.text] for segment in pair.context]
    content = [pair.question_id, pair.agent, context, pair.chosen.written.text, pair.rejected.written.text]
    return blake2b(json.dumps(content, ensure_ascii=True).encode(), digest_size=8).hexdigest()


def marks_file(pairs: Path) -> Path:
    """The file with the marks of a folder of pairs."""
    return pairs.with_name(MARKS_FILE)


def read_marks(pairs: Path) -> dict[str, Mark]:
    """The marks of a folder of pairs by pair id, the oldest first; empty if there are none."""
    path = marks_file(pairs)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data[_VERSION_KEY] != _VERSION:
            raise StepladderError(
                f"{path} has marks of version {data[_VERSION_KEY]!r}; this Stepladder reads version {_VERSION}: update "
                "Stepladder, or move the file away"
            )
        return _MARKS.validate_python(data["marks"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError, ValidationError) as error:
        raise StepladderError(
            f"{path} is damaged: expected the marks of pairs ({type(error).__name__}). Repair it, or move it away"
        ) from error


def mark(pairs: Path, ids: Iterable[str], note: str = "") -> dict[str, Mark]:
    """Mark pairs as wrong, or change the note of their marks; returns all marks. The ids are not checked."""
    note = replace_surrogates(note.strip())
    if len(note) > MAX_NOTE:
        raise StepladderError(f"the note has {len(note):,} characters; at most {MAX_NOTE:,} are kept: shorten it")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with _changing(pairs) as marks:
        for each in ids:
            marks[each] = Mark(marks[each].time if each in marks else now, note)
    return marks


def unmark(pairs: Path, ids: Iterable[str]) -> dict[str, Mark]:
    """Remove the marks of pairs; returns the marks that are left."""
    with _changing(pairs) as marks:
        for each in ids:
            marks.pop(each, None)
    return marks


@dataclass(slots=True)
class MarkedFilter:
    """Leaves marked pairs out, and counts them."""

    marked: Collection[str]
    excluded: int = 0

    def __call__(self, pairs: Iterable[Pair], what: str = "") -> Iterator[Pair]:
        """The pairs that are not marked. `what`: the name of these pairs; raises if all of them are marked."""
        before, kept = self.excluded, 0
        for pair in pairs:
            if self.marked and pair_id(pair) in self.marked:
                self.excluded += 1
            else:
                kept += 1
                yield pair
        if what and not kept and self.excluded > before:
            raise StepladderError(
                f"all {self.excluded - before:,} {what} are marked as wrong: remove marks, or use the marked pairs too"
            )


@contextmanager
def _changing(pairs: Path) -> Iterator[dict[str, Mark]]:
    """The marks, which are written at the end. One writer at a time."""
    with _writing, _locked(pairs.parent):
        marks = read_marks(pairs)
        yield marks
        plain = {_VERSION_KEY: _VERSION, "marks": {name: asdict(each) for name, each in marks.items()}}
        with atomic_file(marks_file(pairs), what="marks") as file:
            json.dump(plain, file, indent=1, ensure_ascii=False)
            file.write("\n")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Exclusive among processes. The folder itself is locked, so that no lock file remains in the run."""
    try:
        import fcntl  # not on Windows, where one process should write at a time
    except ImportError:
        yield
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StepladderError(f"{folder} cannot be opened: {error.strerror}. Are the pairs still there?") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            os.close(descriptor)
