"""A data set: questions by split, and passages. What is on disk is read when it is first asked for, and once.

In: functions that read. Out: `DataSet`, whose mapping of questions and sequence of passages look like any other.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from stepladder.core.errors import unknown_name
from stepladder.core.trace import Passage, Question


@dataclass(frozen=True, slots=True)
class DataSet:
    """Questions by split, and the passages they are about; None when an index has to be given beside them."""

    name: str
    questions: Mapping[str, tuple[Question, ...]]
    passages: Sequence[Passage] | None = None

    def split(self, name: str) -> tuple[Question, ...]:
        """The questions of one split."""
        if name not in self.questions:
            raise unknown_name(f"split of {self.name}", name, self.questions)
        return self.questions[name]

    def left_out(self, split: str) -> dict[str, int]:
        """What a split of the files does not come with here, and how much of it: unanswerable questions, ..."""
        return self.questions.left_out(split) if isinstance(self.questions, ReadSplits) else {}


@dataclass(frozen=True, slots=True)
class Read:
    """The questions of a file, and how many were left out, by the reason."""

    questions: tuple[Question, ...]
    left_out: Mapping[str, int]


class ReadSplits(Mapping[str, tuple[Question, ...]]):
    """Splits that are read when they are asked for."""

    def __init__(self, readers: Mapping[str, Callable[[], Read]]) -> None:
        self._readers = dict(readers)
        self._read: dict[str, Read] = {}

    def __getitem__(self, split: str) -> tuple[Question, ...]:
        return self._split(split).questions

    def __contains__(self, split: object) -> bool:
        return split in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def left_out(self, split: str) -> dict[str, int]:
        """How many questions of a split were left out, by the reason."""
        return {reason: count for reason, count in self._split(split).left_out.items() if count}

    def _split(self, split: str) -> Read:
        if split not in self._read:
            self._read[split] = self._readers[split]()
        return self._read[split]


class ReadPassages(Sequence[Passage]):
    """Passages that are read when they are asked for."""

    def __init__(self, read: Callable[[], Iterable[Passage]]) -> None:
        self._source = read
        self._passages: tuple[Passage, ...] | None = None

    @property
    def _all(self) -> tuple[Passage, ...]:
        if self._passages is None:
            self._passages = tuple(self._source())
        return self._passages

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | Sequence[Passage]:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Passage]:
        return iter(self._all)

    def stream(self) -> Iterator[Passage]:
        """The passages one at a time; they are kept only if they were before."""
        yield from self._passages if self._passages is not None else self._source()


def counted(found: Iterable[Question | str]) -> Read:
    """The questions among what was found, and how often there was a reason for having none instead."""
    left_out: Counter[str] = Counter()
    questions: list[Question] = []
    for each in found:
        if isinstance(each, str):
            left_out[each] += 1
        else:
            questions.append(each)
    return Read(tuple(questions), left_out)
