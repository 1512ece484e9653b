"""A world: its entities, its facts, and the look-ups from object back to subject.

In: the number of articles and a seed. Out: `World`, which knows everything that is true and nothing about how
passages and questions word it.
"""

import random
from collections.abc import Collection
from dataclasses import dataclass

from stepladder.core.seeding import seed_of
from stepladder.data.atlas.facts import Facts, Object, state_facts
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.name_generator import Namer
from stepladder.data.atlas.population import Draft, Naming, draft_population, name_population
from stepladder.data.atlas.schema import Relation
from stepladder.data.atlas.tables.catalogue import RELATIONS, TYPES

#: The relations that imply another, by the name of that.
_IMPLYING: dict[str, tuple[Relation, ...]] = {
    name: tuple(row for row in RELATIONS.values() if row.implies == name) for name in RELATIONS
}


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing with an article of its own."""

    index: int
    #: The id of its passage, unlike those of any other world.
    id: str
    kind: str
    name: str
    #: The heading of its article: the name, with a remark in brackets when another entity shares it.
    title: str
    #: A noun phrase that can only mean this entity: "the river Velmora", "the painter Orin Tasker".
    described: str
    aliases: tuple[str, ...]
    #: The style its name is coined in, which tells where it may come from.
    style: int
    #: Whether an entity of another type has the same name; whether one of the same type has.
    homonym: bool
    namesake: bool
    #: Index of the entity whose near-duplicate this is, or -1.
    twin: int

    @property
    def spellings(self) -> tuple[str, ...]:
        """What counts as the answer; the first is canonical, and the one that passages use."""
        return self.spellings_as(self.name)

    def spellings_as(self, name: str) -> tuple[str, ...]:
        """What counts as the answer, one of its names first: names, and the longer forms that texts use."""
        forms = [name, self.name, *self.aliases, TYPES[self.kind].described.format(name), self.described, self.title]
        kept: dict[str, str] = {}
        for text in forms:
            kept.setdefault(text.lower().removeprefix("the "), text)
        return tuple(kept.values())

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
        #: Begins every id, so that questions are not taken for those of another world, nor passages.
        self.name = f"atlas-{articles}-{seed}"
        self.facts: tuple[Facts, ...] = tuple(facts)
        self.entities: tuple[Entity, ...] = tuple(
            _entity(index, f"{self.name}-{index:06d}", draft, naming, facts[index], namings)
            for index, (draft, naming) in enumerate(zip(drafts, namings))
        )
        #: Every coined word that is in use, in lower case.
        self.name_words: frozenset[str] = frozenset(namer.words & self._words_in_use())
        self._subjects: dict[tuple[int, str], list[int]] = {}
        for index, own in enumerate(facts):
            for name, target in own.items():
                if isinstance(target, int):
                    self._subjects.setdefault((target, name), []).append(index)

    def _words_in_use(self) -> set[str]:
        names = [name for entity in self.entities for name in (entity.name, *entity.aliases)]
        terms = [target.spellings[0] for own in self.facts for target in own.values() if isinstance(target, Value)]
        return {word for text in names + terms for word in text.lower().split()}

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

    def implying(self, fact: Fact) -> list[Fact]:
        """The facts that state the same the other way round, as that of a country's capital does of its place."""
        if not isinstance(fact.object, int):
            return []
        held = self.facts[fact.object]
        return [
            Fact(fact.object, row, fact.subject)
            for row in _IMPLYING.get(fact.relation.name, ())
            if held.get(row.name) == fact.subject
        ]

    def spellings(self, target: Object) -> tuple[str, ...]:
        """Accepted answers for an object; the first is canonical."""
        return target.spellings if isinstance(target, Value) else self.entities[target].spellings


def _entity(index: int, id: str, draft: Draft, naming: Naming, facts: Facts, namings: list[Naming]) -> Entity:
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
        index=index,
        id=id,
        kind=draft.kind,
        name=name,
        title=title,
        described=described,
        aliases=naming.aliases,
        style=naming.style,
        homonym=naming.homonym,
        namesake=naming.namesake,
        twin=draft.twin,
    )
