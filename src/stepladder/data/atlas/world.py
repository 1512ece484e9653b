"""A world: its entities, its facts, and the look-ups from object back to subject.

In: the number of articles and a seed. Out: `World`, which knows everything that is true and nothing about how
passages and questions word it.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass

from stepladder.data.atlas.catalogue import RELATIONS, TYPES
from stepladder.data.atlas.facts import Facts, Object, state_facts
from stepladder.data.atlas.names import Namer
from stepladder.data.atlas.population import Draft, Naming, draft_population, name_population
from stepladder.data.atlas.schema import Relation
from stepladder.data.atlas.values import Value
from stepladder.seeding import seed_of


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with an article of its own."""

    index: int
    kind: str
    name: str
    #: The heading of its article: the name, with a remark in brackets when another entity shares it.
    title: str
    #: A noun phrase that can only mean this entity: "the river Velmora", "the painter Orin Tasker".
    described: str
    aliases: tuple[str, ...]
    #: Whether an entity of another type has the same name; whether one of the same type has.
    homonym: bool
    namesake: bool
    #: Index of the entity whose near-duplicate this is, or -1.
    twin: int

    @property
    def id(self) -> str:
        """The id of its passage."""
        return f"atlas-{self.index:06d}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """Names that count as the answer; the first is canonical."""
        return (self.name, *self.aliases)

    @property
    def plain(self) -> str:
        """How a sentence names it when the name is clear: "the Velmora", "Orin Tasker"."""
        return TYPES[self.kind].plain.format(self.name)


@dataclass(frozen=True, slots=True)
class Fact:
    """One true thing: subject, relation, object."""

    subject: int
    relation: Relation
    object: Object


class World:
    """All entities and facts of one seed."""

    def __init__(self, articles: int, seed: int, avoid: Collection[str] = ()) -> None:
        namer = Namer(random.Random(seed_of("atlas", seed, "words")), avoid)
        drafts = draft_population(articles, random.Random(seed_of("atlas", seed, "population")))
        namings = name_population(drafts, namer, random.Random(seed_of("atlas", seed, "names")))
        facts = state_facts(drafts, namer, random.Random(seed_of("atlas", seed, "facts")))
        self.seed = seed
        self.facts: tuple[Facts, ...] = tuple(facts)
        self.entities: tuple[Entity, ...] = tuple(
            _entity(index, draft, naming, facts[index], namings)
            for index, (draft, naming) in enumerate(zip(drafts, namings))
        )
        #: Every word coined for a name, in lower case.
        self.name_words: frozenset[str] = frozenset(namer.words)
        self._subjects: dict[tuple[int, str], list[int]] = {}
        for index, own in enumerate(facts):
            for name, target in own.items():
                if isinstance(target, int):
                    self._subjects.setdefault((target, name), []).append(index)

    def fact(self, subject: int, relation: str) -> Fact:
        """The fact a subject has of a relation; `KeyError` when it has none."""
        return Fact(subject, RELATIONS[relation], self.facts[subject][relation])

    def subjects(self, target: int, relation: str, kind: str) -> list[int]:
        """All entities of a type that have `target` as the object of a relation."""
        found = self._subjects.get((target, relation), [])
        return [index for index in found if self.entities[index].kind == kind]

    def incoming(self, target: int, relations: Collection[str]) -> list[Fact]:
        """All facts of some relations whose object is `target`."""
        return [
            Fact(subject, RELATIONS[name], target)
            for name in relations
            for subject in self._subjects.get((target, name), ())
        ]

    def spellings(self, target: Object) -> tuple[str, ...]:
        """Accepted answers for an object; the first is canonical."""
        return target.spellings if isinstance(target, Value) else self.entities[target].spellings


def _entity(index: int, draft: Draft, naming: Naming, facts: Facts, namings: list[Naming]) -> Entity:
    row, name = TYPES[draft.kind], naming.name
    title, described = name, row.described.format(name)
    if naming.namesake and draft.kind == "person":
        title, described = f"{name} ({draft.role})", f"the {draft.role} {name}"
    elif naming.namesake:
        country = facts["located_in"]
        assert isinstance(country, int)
        title, described = f"{name} ({namings[country].name})", f"{described} in {namings[country].name}"
    elif naming.homonym:
        title = f"{name} ({row.noun})"
    return Entity(
        index, draft.kind, name, title, described, naming.aliases, naming.homonym, naming.namesake, draft.twin
    )
