"""The questions of a split: how many of each kind, and the records made of what is drawn.

In: a `World`, its `Library`, the name of a split and how many questions it gets. Out: `Question` records and
the chain of facts each of them uses.
"""

import random

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question
from stepladder.data.atlas.articles import Library
from stepladder.data.atlas.phrasing import Chain
from stepladder.data.atlas.question_sampler import Writer
from stepladder.data.atlas.world import World

#: Questions in a hundred: (searches, kind).
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
    """The questions of a split, in mixed order, and the chain of each by id."""
    rng = random.Random(seed_of("atlas", world.seed, "questions", split))
    writer = Writer(world, library, split, rng)
    asked = [writer.write(searches, kind, turn) for searches, kind, turn in _quotas(count)]
    rng.shuffle(asked)
    questions, chains = [], {}
    for number, each in enumerate(asked):
        hops = tuple(each.outline.hops)
        gold = tuple(hop.passages for hop in hops if hop.passages)
        key = f"{world.name}-{split}-{number:05d}"
        questions.append(Question(key, each.text, each.answers, hops, gold, each.kind))
        chains[key] = each.chain(world)
    return tuple(questions), chains


def _quotas(count: int) -> list[tuple[int, str, int]]:
    """How many searches, which kind, the how-maniest of these: the mix, rounded so that nothing is lost."""
    quotas: list[tuple[int, str, int]] = []
    owed = 0
    for (searches, kind), percent in MIX.items():
        owed += percent * count
        due, owed = divmod(owed, 100)
        quotas += [(searches, kind, turn) for turn in range(due)]
    return quotas
