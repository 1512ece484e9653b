"""The index of a folder of pairs: one row per pair with what it is filtered by, and its place in the file.

In: a folder that the stage `pairs` wrote. Out: rows, and single pairs, which are read from disk when they are shown.
The texts of the pairs are not kept in memory: a large run has gigabytes of them.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from stepladder.core.errors import StepladderError
from stepladder.core.io.records import loads
from stepladder.core.trace import Pair, TraceError
from stepladder.core.unicode import readable
from stepladder.pipeline.pair_folder import DEV_PAIRS, TRAIN_PAIRS
from stepladder.preferences.marks import pair_id

#: Indexes that are kept.
_MOST_KEPT = 4
_SHOWN = 80

Split = Literal["train", "dev"]
_FILES: dict[Split, str] = {"train": TRAIN_PAIRS, "dev": DEV_PAIRS}
#: What the gold judge says about a pair: it prefers the chosen step, the rejected one, neither, or cannot grade both.
Gold = Literal["agrees", "disagrees", "neither", "unknown"]


@dataclass(frozen=True, slots=True)
class PairRow:
    """A pair in the list."""

    id: str
    split: Split
    start: int
    length: int
    question_id: str
    #: Kinds of the chosen and the rejected action.
    kind: str
    rejected_kind: str
    judge: str
    margin: float | None
    depth: int
    gold: Gold
    chosen: str
    rejected: str

    def data(self) -> dict[str, Any]:
        """Plain data, for the page."""
        names = ("id", "split", "question_id", "kind", "rejected_kind", "judge", "margin", "depth", "gold")
        return {name: getattr(self, name) for name in (*names, "chosen", "rejected")}


@dataclass(frozen=True, slots=True)
class PairFilter:
    """Which pairs are shown; empty fields show all."""

    kind: str = ""
    judge: str = ""
    split: str = ""
    gold: str = ""
    #: `marked` or `unmarked`.
    marks: str = ""
    #: Words of the steps or of the question's id.
    text: str = ""

    def shows(self, row: PairRow, marked: Iterable[str]) -> bool:
        """Whether a pair is shown."""
        wanted = {"kind": self.kind, "judge": self.judge, "split": self.split, "gold": self.gold}
        if any(value and getattr(row, name) != value for name, value in wanted.items()):
            return False
        if self.marks and (row.id in marked) is not (self.marks == "marked"):
            return False
        text = self.text.casefold()
        return not text or any(text in each.casefold() for each in (row.question_id, row.chosen, row.rejected))


class PairIndex:
    """The pairs of one folder."""

    def __init__(self, folder: Path) -> None:
        """Reads both files once. Equal pairs are listed once."""
        self.folder = folder
        self._by_id: dict[str, PairRow] = {}
        for split, name in _FILES.items():
            for row in _rows(folder / name, split):
                self._by_id.setdefault(row.id, row)
        self.rows = list(self._by_id.values())

    def facets(self) -> dict[str, dict[str, int]]:
        """The values that pairs can be filtered by, and how many pairs have each."""
        names = ("kind", "judge", "split", "gold")
        return {name: dict(Counter(getattr(row, name) for row in self.rows).most_common()) for name in names}

    def __contains__(self, name: object) -> bool:
        return name in self._by_id

    def pair(self, name: str) -> tuple[PairRow, Pair] | None:
        """A pair by its id; None if there is none."""
        row = self._by_id.get(name)
        if row is None:
            return None
        with (self.folder / _FILES[row.split]).open("rb") as file:
            file.seek(row.start)
            return row, loads(file.read(row.length).decode(), Pair)


class PairIndexes:
    """The indexes that were used last. An index is made again when its files have changed."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, tuple[int, ...]], PairIndex] = OrderedDict()
        self._lock = Lock()

    def of(self, folder: Path) -> PairIndex:
        """The index of a folder. Raises `StepladderError` if its files cannot be read."""
        try:
            states = [(folder / name).stat() for name in _FILES.values()]
        except OSError as error:
            raise StepladderError(f"the pairs in {folder} cannot be read: {error.strerror}") from error
        key = folder, tuple(number for state in states for number in (state.st_mtime_ns, state.st_size))
        with self._lock:
            if key not in self._kept:
                self._kept[key] = PairIndex(folder)
                while len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


def _rows(path: Path, split: Split) -> Iterator[PairRow]:
    start = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    try:
                        yield _row(loads(line.decode(), Pair), split, start, len(line))
                    except (TraceError, UnicodeDecodeError) as error:
                        raise StepladderError(f"{path}:{number}: {error}") from error
                start += len(line)
    except OSError as error:
        raise StepladderError(f"{path} cannot be read: {error.strerror}") from error


def _row(pair: Pair, split: Split, start: int, length: int) -> PairRow:
    chosen, rejected = pair.chosen, pair.rejected
    kinds = chosen.action.kind.value, rejected.action.kind.value
    shown = readable(chosen.action.content, _SHOWN), readable(rejected.action.content, _SHOWN)
    return PairRow(
        pair_id(pair), split, start, length, pair.question_id, *kinds, pair.judge, pair.margin, pair.depth,
        gold_of(pair), *shown,
    )  # fmt: skip


def gold_of(pair: Pair) -> Gold:
    """What the gold judge says about a pair."""
    chosen, rejected = pair.chosen.scores.get("gold"), pair.rejected.scores.get("gold")
    if chosen is None or rejected is None:
        return "unknown"
    return "neither" if chosen == rejected else "agrees" if chosen > rejected else "disagrees"
