"""Refill: which questions replace those of an update whose episodes give no signal (DAPO's dynamic sampling).

In: the questions of the training, the order in which updates ask them, a seed. Out: for each update, round and place of
a question in the update, the question that is asked there next. It depends on nothing else: neither on earlier updates,
so that a resumed training asks the same questions, nor on the other places, so that each process refills its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question

#: The question of a place in a round of refills, which are counted from 1.
NextQuestion = Callable[[int, int], Question]


@dataclass(frozen=True, slots=True)
class Refills:
    """Further questions for every update."""

    questions: Sequence[Question]
    #: Indices of the questions, batch by batch.
    order: Sequence[int]
    #: Questions per batch.
    batch: int
    seed: int

    def of(self, batch: int) -> NextQuestion:
        """Of a batch of episodes, which are counted from 0."""
        asked = self.order[batch * self.batch : (batch + 1) * self.batch]
        further = further_questions(len(self.questions), asked, seed_of(self.seed, "refill", batch))
        return partial(self._next, further)

    def _next(self, further: Sequence[int], number: int, place: int) -> Question:
        return self.questions[further[((number - 1) * self.batch + place) % len(further)]]


def further_questions(count: int, asked: Sequence[int], seed: int) -> list[int]:
    """The indices of all questions, shuffled; those that the update asks anyway come last.

    >>> further_questions(5, [0, 3], seed=1)
    [4, 1, 2, 0, 3]
    """
    shuffled = np.random.default_rng(seed).permutation(count).tolist()
    return sorted(shuffled, key=set(asked).__contains__)
