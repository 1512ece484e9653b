"""A seeded sample of questions.

In: questions and a seed. Out: some of them, in random order; on request balanced by the number of searches needed.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question


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
    rank: dict[int, int] = {}
    for index, question in enumerate(shuffled):
        rank[index] = seen[question.searches_needed]
        seen[question.searches_needed] += 1
    return [shuffled[index] for index in sorted(rank, key=lambda index: rank[index])[:count]]
