"""A data set: questions by split, and passages. Files are read lazily, on first access, and only once.

In: functions that read. Out: `DataSet`, with a mapping of questions and a sequence of passages.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from stepladder.core.errors import unknown_name
from stepladder.core.trace import Passage, Question


@dataclass(frozen=True, slots=True)
class DataSet:
    """Questions by split and their corpus. `passages` is None if the data has none and a separate index is needed."""

    name: str
    questions: Mapping[str, tuple[Question, ...]]
    passages: Sequence[Passage] | None = None

    def split(self, name: str) -> tuple[Question, ...]:
        """The questions of one split."""
        if name not in self.questions:
            raise unknown_name(f"split of {self.name}", name, self.questions)
        return self.questions[name]

    def skipped(self, split: str) -> dict[str, int]:
        """What was skipped when a split was read (unanswerable questions, ...): number of cases by reason."""
        return self.questions.skipped(split) if isinstance(self.questions, LazySplits) else {}


@dataclass(frozen=True, slots=True)
class LoadedSplit:
    """The questions of a split, and the number of skipped cases by reason."""

    questions: tuple[Question, ...]
    skipped: Mapping[str, int]


class LazySplits(Mapping[str, tuple[Question, ...]]):
    """Splits that are read on first access."""

    def __init__(self, readers: Mapping[str, Callable[[], LoadedSplit]]) -> None:
        self._readers = {split: cache(read) for split, read in readers.items()}

    def __getitem__(self, split: str) -> tuple[Question, ...]:
        return self._readers[split]().questions

    def __contains__(self, split: object) -> bool:
        return split in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def skipped(self, split: str) -> dict[str, int]:
        """The number of skipped cases of a split, by reason."""
        return dict(self._readers[split]().skipped)


class LazyPassages(Sequence[Passage]):
    """Passages that are read on first access."""

    def __init__(self, read: Callable[[], Iterable[Passage]]) -> None:
        self._all = cache(lambda: tuple(read()))

    def __getitem__(self, index: Any) -> Any:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self) -> Iterator[Passage]:
        return iter(self._all())


def collect(results: Iterable[Question | str]) -> LoadedSplit:
    """The questions among the results; the others are reasons for skipping a question, which are counted."""
    found = list(results)
    questions = tuple(each for each in found if isinstance(each, Question))
    return LoadedSplit(questions, Counter(each for each in found if isinstance(each, str)))
