"""Which split a fact belongs to, and where the facts of one split lead.

In: a `World`. Out: the split of a fact, decided by a hash, so that no fact is asked about in two splits; and
`SplitFacts`, in which question writers look for facts of their own split only.
"""

import random

from stepladder.core.seeding import seed_of
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.phrasing import Link, Way
from stepladder.data.atlas.schema import Relation
from stepladder.data.atlas.tables.catalogue import RELATIONS, TYPES
from stepladder.data.atlas.world import Fact, World

#: Facts in a hundred that belong to each split.
SPLIT_SHARES: dict[str, int] = {"train": 55, "dev": 20, "test": 25}

#: Not asked of what another fact led to: the author of a novel is a novelist, as anyone can tell.
TOLD_BY_THE_WAY = ("occupation", "industry")

#: Relations that can be asked inversely, by the type of their object.
_INVERTIBLE: dict[str, tuple[Relation, ...]] = {
    kind: tuple(row for row in RELATIONS.values() if row.object == kind and row.inverse_asks) for kind in TYPES
}
#: Relations that lead to an entity of a type.
_LEADING: dict[str, tuple[str, ...]] = {
    kind: tuple(row.name for row in RELATIONS.values() if row.object == kind and row.phrases) for kind in TYPES
}


def split_of(world: World, fact: Fact) -> str:
    """The split a fact belongs to. A fact and what it implies the other way round share one."""
    subject, name = fact.subject, fact.relation.name
    if fact.relation.implies and isinstance(fact.object, int):
        name = fact.relation.implies
        subject = min(subject, fact.object) if fact.relation.symmetric else fact.object
    ticket = seed_of("atlas", world.seed, "split", subject, name) % 100
    for split, share in SPLIT_SHARES.items():
        ticket -= share
        if ticket < 0:
            return split
    raise AssertionError("split shares do not add up to 100")


class SplitFacts:
    """The facts of one split, by where they lead."""

    def __init__(self, world: World, split: str) -> None:
        self._world, self._split = world, split
        self._known: dict[tuple[int, str], bool] = {}
        #: Entities by type; by type and style of the name.
        self.members: dict[str, list[int]] = {}
        self.kin: dict[tuple[str, int], list[int]] = {}
        for entity in world.entities:
            self.members.setdefault(entity.kind, []).append(entity.index)
            self.kin.setdefault((entity.kind, entity.style), []).append(entity.index)

    def holds(self, fact: Fact) -> bool:
        """Whether a fact is of this split."""
        key = fact.subject, fact.relation.name
        if key not in self._known:
            self._known[key] = split_of(self._world, fact) == self._split
        return self._known[key]

    def links(self, here: int, visited: set[int], last: bool) -> list[Link]:
        """Facts that lead on from an entity; before the last hop only to entities."""
        world = self._world
        links = [
            Link(world.fact(here, name))
            for name, target in world.facts[here].items()
            if self._may_lead_to(target, visited, last)
        ]
        for relation in _INVERTIBLE[world.entities[here].kind]:
            for kind in relation.subjects:
                subjects = world.subjects(here, relation.name, kind)
                if len(subjects) == 1 and self._may_lead_to(subjects[0], visited, last):
                    links.append(Link(world.fact(subjects[0], relation.name), inverse=True))
        return [link for link in links if self.holds(link.fact)]

    def _may_lead_to(self, target: int | Value, visited: set[int], last: bool) -> bool:
        if isinstance(target, Value):
            return last
        # A namesake's name alone would not tell the next hop which of them is meant.
        return target not in visited and (last or not self._world.entities[target].namesake)

    def way_to(self, end: int, hops: int, rng: random.Random, like: Way = ()) -> Way | None:
        """So many facts that lead one after the other to an entity, of the same relations as others if possible."""
        way: Way = ()
        for position in range(hops):
            step = self._step_to(end, rng, like[-1 - position] if like else None)
            if step is None:
                return None
            way, end = (step, *way), step.subject
        return way

    def _step_to(self, end: int, rng: random.Random, like: Fact | None) -> Fact | None:
        entity = self._world.entities[end]
        if entity.namesake:
            return None
        ways = [fact for fact in self._world.incoming(end, _LEADING[entity.kind]) if self.holds(fact)]
        alike = [fact for fact in ways if like is not None and fact.relation is like.relation]
        return rng.choice(alike or ways) if ways else None
