"""Generate the questions of a split: the number of each kind, and the final records.

In: a `World`, its `Library`, the name of a split and a number of questions. Out: `Question` records, and the chain of
facts of each.
"""

import random

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question
from stepladder.data.atlas.articles import Library
from stepladder.data.atlas.phrasing import Chain
from stepladder.data.atlas.question_sampler import QuestionSampler
from stepladder.data.atlas.world import World

#: Percentage of the questions by (searches, kind).
MIX: dict[tuple[int, str], int] = {
    (1, "single"): 13,
    (1, "intersection"): 2,
    (2, "bridge"): 22,
    (2, "comparison"): 7,
    (2, "yes_no"): 6,
    (2, "intersection"): 5,
    (3, "bridge"): 17,
    (3, "comparison"): 4,
    (3, "yes_no"): 3,
    (3, "intersection"): 4,
    (4, "bridge"): 10,
    (4, "comparison"): 3,
    (4, "yes_no"): 2,
    (4, "intersection"): 2,
}


def write_questions(
    world: World, library: Library, split: str, count: int
) -> tuple[tuple[Question, ...], dict[str, Chain]]:
    """The questions of a split, in random order, and their chains by id."""
    rng = random.Random(seed_of("atlas", world.seed, "questions", split))
    sampler = QuestionSampler(world, library, split, rng)
    drafts = [sampler.sample(searches, kind, turn) for searches, kind, turn in _quotas(count)]
    rng.shuffle(drafts)
    questions, chains = [], {}
    for number, draft in enumerate(drafts):
        hops = tuple(draft.outline.hops)
        gold = tuple(hop.passages for hop in hops if hop.passages)
        key = f"{world.name}-{split}-{number:05d}"
        questions.append(Question(key, draft.text, draft.answers, hops, gold, draft.kind))
        chains[key] = draft.chain(world)
    return tuple(questions), chains


def _quotas(count: int) -> list[tuple[int, str, int]]:
    """(searches, kind, running number) of every question: the mix, rounded so that the total is exact."""
    quotas: list[tuple[int, str, int]] = []
    remainder = 0
    for (searches, kind), percent in MIX.items():
        quota, remainder = divmod(remainder + percent * count, 100)
        quotas += [(searches, kind, turn) for turn in range(quota)]
    return quotas
