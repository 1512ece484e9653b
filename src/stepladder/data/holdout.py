"""Set train questions aside: as `dev` and `test` splits, or as a `warmup` split for SFT.

In: a data set and a number. Out: a data set with new splits. `held_out` moves that many train questions to `dev`; the
old `dev` becomes `test` unless there is a `test` split; without either, as many questions again are moved to `test`.
`with_warmup` moves that many train questions to `warmup`. The selection is the same in every run.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.data.dataset import DataSet, LazySplits, LoadedSplit

#: The split with the questions for SFT, if they are set aside.
WARMUP = "warmup"


def held_out(data: DataSet, count: int) -> DataSet:
    """The data set with train questions set aside as `dev` and, if there is no other test data, as `test`."""
    source = _source_split(data, count)
    test = next((split for split in ("test", "dev") if split in data.questions), None)
    total = count * (1 if test else 2)

    part = partial(_part, data, source, total, "holdout")
    readers: dict[str, Callable[[], LoadedSplit]] = {"train": lambda: part(total, None), "dev": lambda: part(0, count)}
    readers["test"] = partial(_unchanged, data, test) if test else lambda: part(count, total)
    return DataSet(data.name, LazySplits(readers), data.passages)


def with_warmup(data: DataSet, count: int) -> DataSet:
    """The data set with train questions set aside as `warmup`."""
    part = partial(_part, data, _source_split(data, count), count, WARMUP)
    readers: dict[str, Callable[[], LoadedSplit]] = {
        split: partial(_unchanged, data, split) for split in data.questions if split != "all"
    }
    readers |= {"train": lambda: part(count, None), WARMUP: lambda: part(0, count)}
    return DataSet(data.name, LazySplits(readers), data.passages)


def _source_split(data: DataSet, count: int) -> str:
    """The split that questions are taken from."""
    source = next((split for split in ("train", "all") if split in data.questions), None)
    if source is None:
        raise StepladderError(f"{data.name} has no train questions: cannot set aside {count:,}")
    return source


def _part(data: DataSet, source: str, total: int, purpose: str, begin: int, end: int | None) -> LoadedSplit:
    """A slice of the questions in a random order that depends only on `purpose`. `total` questions are set aside."""
    questions = data.split(source)
    if len(questions) <= total:
        remaining = "" if purpose != WARMUP else " that are not held out"
        raise StepladderError(
            f"{data.name} has {len(questions):,} train questions{remaining}: {total:,} cannot be set aside "
            f"(data.{purpose})"
        )
    order = np.random.default_rng(seed_of(0, purpose)).permutation(len(questions))
    chosen = set(order[begin:end].tolist())
    skipped = data.skipped(source) if end is None else {}  # reported once, with the remaining questions
    return LoadedSplit(tuple(question for index, question in enumerate(questions) if index in chosen), skipped)


def _unchanged(data: DataSet, split: str) -> LoadedSplit:
    return LoadedSplit(data.split(split), data.skipped(split))
