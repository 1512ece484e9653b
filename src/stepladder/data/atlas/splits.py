"""Which split a fact belongs to: decided by a hash, so that no fact is asked about in two splits."""

from stepladder.data.atlas.world import Fact, World
from stepladder.seeding import seed_of

#: Facts in a hundred that belong to each split.
SPLIT_SHARES: dict[str, int] = {"train": 55, "dev": 20, "test": 25}


def split_of(world: World, fact: Fact) -> str:
    """The split a fact belongs to. A symmetric fact is the same fact seen from either side."""
    subject = fact.subject
    if fact.relation.symmetric and isinstance(fact.object, int):
        subject = min(subject, fact.object)
    ticket = seed_of("atlas", world.seed, "split", subject, fact.relation.name) % 100
    for split, share in SPLIT_SHARES.items():
        ticket -= share
        if ticket < 0:
            return split
    raise AssertionError("split shares do not add up to 100")
