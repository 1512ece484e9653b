"""Questions set aside: to choose checkpoints by, and to be asked once, at the end; or to be shown and not played.

In: a data set and a number. Out: the same questions, with as many of the train split set aside as `dev`. What was `dev`
is then the `test`, unless there is one; where there was neither, as many again are set aside as `test`. Or with as many
set aside as `warmup`. The choice is the same in every run.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.data.dataset import DataSet, Read, ReadSplits

#: The questions whose transcripts a warm-up learns from, where they are set aside.
WARMUP = "warmup"


def held_out(data: DataSet, count: int) -> DataSet:
    """The data set with questions set aside as `dev` and, where there is none, as `test`."""
    whole = _whole(data, count)
    asked = next((split for split in ("test", "dev") if split in data.questions), None)
    wanted = count * (1 if asked else 2)

    part = partial(_part, data, whole, wanted, "holdout")
    readers: dict[str, Callable[[], Read]] = {"train": lambda: part(wanted, None), "dev": lambda: part(0, count)}
    readers["test"] = partial(_as_it_is, data, asked) if asked else lambda: part(count, wanted)
    return DataSet(data.name, ReadSplits(readers), data.passages)


def with_warmup(data: DataSet, count: int) -> DataSet:
    """The data set with train questions set aside as `warmup`."""
    part = partial(_part, data, _whole(data, count), count, WARMUP)
    readers: dict[str, Callable[[], Read]] = {
        split: partial(_as_it_is, data, split) for split in data.questions if split != "all"
    }
    readers |= {"train": lambda: part(count, None), WARMUP: lambda: part(0, count)}
    return DataSet(data.name, ReadSplits(readers), data.passages)


def _whole(data: DataSet, count: int) -> str:
    """The split that questions are taken from."""
    whole = next((split for split in ("train", "all") if split in data.questions), None)
    if whole is None:
        raise StepladderError(f"{data.name} has no train questions to hold out {count:,} of")
    return whole


def _part(data: DataSet, whole: str, wanted: int, purpose: str, begin: int, end: int | None) -> Read:
    """Some of the questions, by an order that is drawn for a purpose; `wanted` of them are set aside in all."""
    questions = data.split(whole)
    if len(questions) <= wanted:
        of = "" if purpose != WARMUP else " that are not held out"
        raise StepladderError(
            f"{data.name} has {len(questions):,} train questions{of}: {wanted:,} cannot be set aside (data.{purpose})"
        )
    order = np.random.default_rng(seed_of(0, purpose)).permutation(len(questions))
    chosen = set(order[begin:end].tolist())
    left_out = data.left_out(whole) if end is None else {}  # told once, with the questions that are left
    return Read(tuple(question for place, question in enumerate(questions) if place in chosen), left_out)


def _as_it_is(data: DataSet, split: str) -> Read:
    return Read(data.split(split), data.left_out(split))
