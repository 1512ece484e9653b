"""Assign facts to splits.

In: a `World`. Out: the split of a fact, determined by a hash, so that no fact is used in two splits; and `SplitFacts`,
which finds facts of one split.
"""

import random

from stepladder.core.seeding import seed_of
from stepladder.data.atlas.catalogue import RELATIONS, TYPES, Relation
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.phrasing import FactPath, Link
from stepladder.data.atlas.population import by_ticket
from stepladder.data.atlas.world import Fact, World

#: Percentage of the facts in each split.
SPLIT_SHARES: dict[str, int] = {"train": 55, "dev": 20, "test": 25}

#: Relations that can be guessed if another fact led to the entity: the author of a novel is a novelist.
GUESSABLE = ("occupation", "industry")

#: Relations with inverse questions, by the type of their object.
_INVERTIBLE: dict[str, tuple[Relation, ...]] = {
    kind: tuple(row for row in RELATIONS.values() if row.object == kind and row.inverse_asks) for kind in TYPES
}
#: Relations whose object can be nested in a longer question, by its type.
_NESTABLE: dict[str, tuple[str, ...]] = {
    kind: tuple(row.name for row in RELATIONS.values() if row.object == kind and row.phrases) for kind in TYPES
}


def split_of(world: World, fact: Fact) -> str:
    """The split of a fact. A fact and the fact that it implies have the same split."""
    subject, name = fact.subject, fact.relation.name
    if fact.relation.implies and isinstance(fact.object, int):
        name = fact.relation.implies
        subject = min(subject, fact.object) if fact.relation.symmetric else fact.object
    return by_ticket(SPLIT_SHARES, seed_of("atlas", world.seed, "split", subject, name) % 100)


class SplitFacts:
    """Lookups in the facts of one split."""

    def __init__(self, world: World, split: str) -> None:
        self._world, self._split = world, split
        self._known: dict[tuple[int, str], bool] = {}
        #: Entities by type, and by type and style of the name.
        self.members: dict[str, list[int]] = {}
        self.by_style: dict[tuple[str, int], list[int]] = {}
        for entity in world.entities:
            self.members.setdefault(entity.kind, []).append(entity.index)
            self.by_style.setdefault((entity.kind, entity.style), []).append(entity.index)

    def contains(self, fact: Fact) -> bool:
        """Whether a fact belongs to this split."""
        key = fact.subject, fact.relation.name
        if key not in self._known:
            self._known[key] = split_of(self._world, fact) == self._split
        return self._known[key]

    def links(self, here: int, visited: set[int], last: bool) -> list[Link]:
        """Facts that continue a path from an entity. Before the last hop, they lead to entities only."""
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
        return [link for link in links if self.contains(link.fact)]

    def _may_lead_to(self, target: int | Value, visited: set[int], last: bool) -> bool:
        if isinstance(target, Value):
            return last
        # In the next hop, the name of a namesake alone would be ambiguous.
        return target not in visited and (last or not self._world.entities[target].namesake)

    def path_to(self, end: int, hops: int, rng: random.Random, like: FactPath = ()) -> FactPath | None:
        """A path of so many facts to an entity, with the relations of `like` if possible."""
        path: FactPath = ()
        for position in range(hops):
            step = self._step_to(end, rng, like[-1 - position] if like else None)
            if step is None:
                return None
            path, end = (step, *path), step.subject
        return path

    def _step_to(self, end: int, rng: random.Random, like: Fact | None) -> Fact | None:
        entity = self._world.entities[end]
        if entity.namesake:
            return None
        facts = [fact for fact in self._world.incoming(end, _NESTABLE[entity.kind]) if self.contains(fact)]
        similar = [fact for fact in facts if like is not None and fact.relation is like.relation]
        return rng.choice(similar or facts) if facts else None
