"""Several data sets as one.

In: data sets, each with a name. Out: a `DataSet` with the splits of all. The questions of a split take turns, in
proportion to how many each set has, so that any beginning of it is a fair mixture. Ids begin with the name of the set;
those of passages, too, where the set brings its passages along: they are searched together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from stepladder.core.trace import Passage, Question
from stepladder.data.dataset import DataSet, Read, ReadPassages, ReadSplits


def join(name: str, parts: Mapping[str, DataSet]) -> DataSet:
    """One data set of several, which are known by these names."""
    names = dict.fromkeys(split for part in parts.values() for split in part.questions)
    splits = {split: lambda split=split: _split(parts, split) for split in names}
    own = any(part.passages is not None for part in parts.values())
    return DataSet(name, ReadSplits(splits), ReadPassages(lambda: _passages(parts)) if own else None)


def _split(parts: Mapping[str, DataSet], split: str) -> Read:
    having = {name: part for name, part in parts.items() if split in part.questions}
    placed = [
        ((number + 0.5) / len(questions), place, _named(question, name, part))
        for place, (name, part) in enumerate(having.items())
        for questions in [part.split(split)]
        for number, question in enumerate(questions)
    ]
    left_out = {
        f"{reason} ({name})": count for name, part in having.items() for reason, count in part.left_out(split).items()
    }
    return Read(tuple(question for _, _, question in sorted(placed, key=lambda each: each[:2])), left_out)


def _named(question: Question, name: str, part: DataSet) -> Question:
    question = replace(question, id=f"{name}/{question.id}")
    if part.passages is None:  # its gold passages are those of an index that is given beside it
        return question

    def named(ids: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(f"{name}/{each}" for each in ids)

    hops = tuple(replace(hop, passages=named(hop.passages)) for hop in question.hops)
    return replace(question, hops=hops, gold_passages=tuple(map(named, question.gold_passages)))


def _passages(parts: Mapping[str, DataSet]) -> Iterator[Passage]:
    for name, part in parts.items():
        for passage in part.passages or ():
            yield replace(passage, id=f"{name}/{passage.id}")
