"""A data set: questions by split, and passages. Files are read lazily, on first access, and only once.

In: functions that read, or data sets to be joined. Out: `DataSet`, with a mapping of questions and a sequence of
passages.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from stepladder.core.errors import unknown_name
from stepladder.core.trace import GoldText, Passage, Question


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


def join(name: str, parts: Mapping[str, DataSet]) -> DataSet:
    """One data set made of several named ones, with the splits of all.

    The questions of a split are interleaved in proportion to the sizes of the sets, so that every prefix of it is a
    representative mixture. Question ids are prefixed with the name of the set. So are passage ids of sets that have
    their own passages: the passages share one index.
    """
    names = dict.fromkeys(split for part in parts.values() for split in part.questions)
    splits = {split: lambda split=split: _join_split(parts, split) for split in names}
    if all(part.passages is None for part in parts.values()):
        return DataSet(name, LazySplits(splits))
    passages = LazyPassages(
        lambda: (replace(each, id=f"{name}/{each.id}") for name, part in parts.items() for each in part.passages or ())
    )
    return DataSet(name, LazySplits(splits), passages)


def _join_split(parts: Mapping[str, DataSet], split: str) -> LoadedSplit:
    selected = {name: part for name, part in parts.items() if split in part.questions}
    positioned = [
        ((number + 0.5) / len(questions), order, _with_prefix(question, name, part))
        for order, (name, part) in enumerate(selected.items())
        for questions in [part.split(split)]
        for number, question in enumerate(questions)
    ]
    skipped = {
        f"{reason} ({name})": count for name, part in selected.items() for reason, count in part.skipped(split).items()
    }
    positioned.sort(key=lambda each: each[:2])
    return LoadedSplit(tuple(question for _, _, question in positioned), skipped)


def _with_prefix(question: Question, name: str, part: DataSet) -> Question:
    question = replace(question, id=f"{name}/{question.id}")
    if part.passages is None:  # its gold passages are ids of a separate index
        return question

    def prefixed(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{name}/{each}" for each in ids)

    def renamed(texts: tuple[GoldText, ...]) -> tuple[GoldText, ...]:
        return tuple(replace(text, id=f"{name}/{text.id}") for text in texts)

    hops = tuple(
        replace(hop, passages=prefixed(hop.passages), gold_texts=renamed(hop.gold_texts)) for hop in question.hops
    )
    gold = tuple(map(prefixed, question.gold_passages))
    return replace(question, hops=hops, gold_passages=gold, gold_texts=renamed(question.gold_texts))
