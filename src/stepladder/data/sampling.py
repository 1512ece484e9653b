"""Choose questions with a seed: a sample, or some that are set aside.

`sample_questions`: some questions in random order; on request balanced by the number of searches needed.
`held_out`: moves train questions to `dev`; the old `dev` becomes `test` unless there is a `test` split; without either,
as many questions again are moved to `test`. `with_warmup`: moves train questions to `warmup`, for SFT. `with_fewer`:
leaves train questions out. What is set aside or left out is the same in every run.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question
from stepladder.data.dataset import DataSet, LazySplits, LoadedSplit

#: The split with the questions for SFT, if they are set aside.
WARMUP = "warmup"


def sample_questions(questions: Sequence[Question], count: int, seed: int, *, balance: bool = False) -> list[Question]:
    """The first `count` of a seeded shuffle; with `balance`, equally many of each number of searches needed.

    >>> [question.id for question in sample_questions([Question(str(n), "?", ()) for n in range(5)], 3, seed=0)]
    ['0', '4', '3']
    """
    order = np.random.default_rng(seed_of(seed, "questions")).permutation(len(questions))
    shuffled = [questions[index] for index in order]
    if not balance:
        return shuffled[:count]
    # The n-th question of every group comes before the (n+1)-th of any.
    seen: Counter[int] = Counter()
    ranked: list[tuple[int, Question]] = []
    for question in shuffled:
        ranked.append((seen[question.searches_needed], question))
        seen[question.searches_needed] += 1
    return [question for _, question in sorted(ranked, key=itemgetter(0))[:count]]


def held_out(data: DataSet, count: int) -> DataSet:
    """The data set with train questions set aside as `dev` and, if there is no other test data, as `test`."""
    source = _source_split(data, count)
    test = next((split for split in ("test", "dev") if split in data.questions), None)
    new = ("dev",) if test else ("dev", "test")
    total = count * len(new)

    part = partial(_part, data, source, "holdout", count, new)
    read_test = partial(_unchanged, data, test) if test else partial(part, count, total)
    readers = {"train": partial(part, total, None), "dev": partial(part, 0, count), "test": read_test}
    return DataSet(data.name, LazySplits(readers), data.passages)


def with_warmup(data: DataSet, count: int) -> DataSet:
    """The data set with train questions set aside as `warmup`."""
    part = partial(_part, data, _source_split(data, count), WARMUP, count, (WARMUP,))
    readers = {split: partial(_unchanged, data, split) for split in data.questions if split != "all"}
    readers |= {"train": partial(part, count, None), WARMUP: partial(part, 0, count)}
    return DataSet(data.name, LazySplits(readers), data.passages)


def with_fewer(data: DataSet, count: int) -> DataSet:
    """The data set with `count` of its train questions; a smaller count gives some of those of a larger one."""
    source = _source_split(data, count)

    def chosen() -> LoadedSplit:
        questions = data.split(source)
        if len(questions) < count:
            raise StepladderError(
                f"{data.name} has {len(questions):,} train questions that are neither held out nor for sft; "
                f"data.train_questions={count} is more"
            )
        order = np.random.default_rng(seed_of(0, "train_questions")).permutation(len(questions))
        return LoadedSplit(tuple(questions[index] for index in sorted(order[:count].tolist())), data.skipped(source))

    readers = {split: partial(_unchanged, data, split) for split in data.questions if split != "all"}
    return DataSet(data.name, LazySplits({**readers, "train": chosen}), data.passages)


def _source_split(data: DataSet, count: int) -> str:
    """The split that questions are taken from."""
    source = next((split for split in ("train", "all") if split in data.questions), None)
    if source is None:
        raise StepladderError(f"{data.name} has no train questions: cannot set aside {count:,}")
    return source


def _part(
    data: DataSet, source: str, purpose: str, count: int, new: Sequence[str], begin: int, end: int | None
) -> LoadedSplit:
    """A slice of the questions in a random order that depends only on `purpose`. Each `new` split has `count`."""
    questions = data.split(source)
    if len(questions) <= count * len(new):
        left = " that are not held out" if purpose == WARMUP else ""
        what = f"{count:,} for sft" if purpose == WARMUP else " and ".join(f"{count:,} as {each}" for each in new)
        raise StepladderError(
            f"{data.name} has {len(questions):,} train questions{left}, and data.{purpose}={count} sets aside {what}: "
            f"none would be left. Type --set data.{purpose}=N with N at most {(len(questions) - 1) // len(new)}"
        )
    order = np.random.default_rng(seed_of(0, purpose)).permutation(len(questions))
    chosen = set(order[begin:end].tolist())
    skipped = data.skipped(source) if end is None else {}  # reported once, with the remaining questions
    return LoadedSplit(tuple(question for index, question in enumerate(questions) if index in chosen), skipped)


def _unchanged(data: DataSet, split: str) -> LoadedSplit:
    return LoadedSplit(data.split(split), data.skipped(split))
