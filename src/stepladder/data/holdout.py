"""Questions set aside: to choose checkpoints by, and to be asked once, at the end.

In: a data set and a number. Out: the same questions, with as many of the train split set aside as `dev`. What was `dev`
is then the `test`, unless there is one; where there was neither, as many again are set aside as `test`. The choice is
the same in every run.
"""

import numpy as np

from stepladder.data.dataset import DataSet, Read, ReadSplits
from stepladder.errors import StepladderError
from stepladder.seeding import seed_of


def held_out(data: DataSet, count: int) -> DataSet:
    """The data set with questions set aside."""
    whole = next((split for split in ("train", "all") if split in data.questions), None)
    if whole is None:
        raise StepladderError(f"{data.name} has no train questions to hold out {count:,} of")
    asked = next((split for split in ("test", "dev") if split in data.questions), None)
    wanted = count * (1 if asked else 2)

    def part(begin: int, end: int | None) -> Read:
        questions = data.split(whole)
        if len(questions) <= wanted:
            raise StepladderError(f"{data.name} has {len(questions):,} train questions: {wanted:,} cannot be held out")
        order = np.random.default_rng(seed_of(0, "holdout")).permutation(len(questions))
        chosen = set(order[begin:end].tolist())
        left_out = data.left_out(whole) if end is None else {}  # told once, with the questions that are left
        return Read(tuple(question for place, question in enumerate(questions) if place in chosen), left_out)

    def others() -> Read:
        assert asked is not None
        return Read(data.split(asked), data.left_out(asked))

    readers = {"train": lambda: part(wanted, None), "dev": lambda: part(0, count)}
    readers["test"] = others if asked else lambda: part(count, wanted)
    return DataSet(data.name, ReadSplits(readers), data.passages)
