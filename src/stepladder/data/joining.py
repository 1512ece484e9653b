"""Combine several data sets into one.

In: data sets, each with a name. Out: a `DataSet` with the splits of all. The questions of a split are interleaved in
proportion to the sizes of the sets, so that every prefix of it is a representative mixture. Question ids are prefixed
with the name of the set. So are passage ids of sets that have their own passages: the passages share one index.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stepladder.core.trace import Passage, Question
from stepladder.data.dataset import DataSet, LazyPassages, LazySplits, LoadedSplit


def join(name: str, parts: Mapping[str, DataSet]) -> DataSet:
    """One data set made of several named ones."""
    names = dict.fromkeys(split for part in parts.values() for split in part.questions)
    splits = {split: lambda split=split: _join_split(parts, split) for split in names}
    has_passages = any(part.passages is not None for part in parts.values())
    return DataSet(name, LazySplits(splits), LazyPassages(lambda: _join_passages(parts)) if has_passages else None)


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

    hops = tuple(replace(hop, passages=prefixed(hop.passages)) for hop in question.hops)
    return replace(question, hops=hops, gold_passages=tuple(map(prefixed, question.gold_passages)))


def _join_passages(parts: Mapping[str, DataSet]) -> Iterator[Passage]:
    for name, part in parts.items():
        for passage in part.passages or ():
            yield replace(passage, id=f"{name}/{passage.id}")
