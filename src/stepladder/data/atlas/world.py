"""A world: its entities and facts, with lookups from object to subject.

In: the number of articles and a seed. Out: `World`. It does not depend on the wording of passages and questions.
"""

import random
from collections.abc import Collection
from dataclasses import asdict, dataclass

from stepladder.core.seeding import seed_of
from stepladder.data.atlas.catalogue import RELATIONS, TYPES, Relation
from stepladder.data.atlas.facts import Facts, Object, generate_facts
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.population import Draft, Namer, Naming, draft_population, name_population

#: The relations that imply a relation, by its name.
_IMPLYING: dict[str, tuple[Relation, ...]] = {
    name: tuple(row for row in RELATIONS.values() if row.implies == name) for name in RELATIONS
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity(Naming):
    """An entity with its names: the subject of an article."""

    index: int
    #: The id of its passage, unique across worlds.
    id: str
    kind: str
    #: The title of its article: the name, with a suffix in brackets if another entity has the same name.
    title: str
    #: An unambiguous noun phrase: "the river Velmora", "the painter Orin Tasker".
    described: str
    #: Index of the entity of which this is a near-duplicate, or -1.
    duplicate_of: int

    @property
    def spellings(self) -> tuple[str, ...]:
        """Accepted answers. The first is canonical and used in passages."""
        return self.spellings_as(self.name)

    def spellings_as(self, name: str) -> tuple[str, ...]:
        """Accepted answers, beginning with one of its names: names, and the longer forms that texts use."""
        forms = [name, self.name, *self.aliases, TYPES[self.kind].described.format(name), self.described, self.title]
        kept: dict[str, str] = {}
        for text in forms:
            kept.setdefault(text.lower().removeprefix("the "), text)
        return tuple(kept.values())

    @property
    def plain(self) -> str:
        """How a sentence names it if the name is unambiguous: "the Velmora", "Orin Tasker"."""
        return TYPES[self.kind].plain.format(self.name)


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact: subject, relation, object."""

    subject: int
    relation: Relation
    object: Object


class World:
    """All entities and facts of one seed."""

    def __init__(self, articles: int, seed: int, avoid: Collection[str] = ()) -> None:
        namer = Namer(random.Random(seed_of("atlas", seed, "words")), avoid)
        drafts = draft_population(articles, random.Random(seed_of("atlas", seed, "population")))
        namings = name_population(drafts, namer, random.Random(seed_of("atlas", seed, "names")))
        facts = generate_facts(drafts, namer, random.Random(seed_of("atlas", seed, "facts")))
        self.seed = seed
        #: Prefix of every question and passage id, so that ids are unique across worlds.
        self.name = f"atlas-{articles}-{seed}"
        self.facts: tuple[Facts, ...] = tuple(facts)
        self.entities: tuple[Entity, ...] = tuple(
            _entity(index, f"{self.name}-{index:06d}", draft, naming, facts[index], namings)
            for index, (draft, naming) in enumerate(zip(drafts, namings))
        )
        names = [name for entity in self.entities for name in (entity.name, *entity.aliases)]
        terms = [target.spellings[0] for own in facts for target in own.values() if isinstance(target, Value)]
        #: Every invented word in use, in lower case.
        self.name_words = frozenset(namer.words.intersection(" ".join(names + terms).lower().split()))
        self._subjects: dict[tuple[int, str], list[int]] = {}
        for index, own in enumerate(facts):
            for name, target in own.items():
                if isinstance(target, int):
                    self._subjects.setdefault((target, name), []).append(index)

    def fact(self, subject: int, relation: str) -> Fact:
        """The fact of a subject and a relation; raises `KeyError` if there is none."""
        return Fact(subject, RELATIONS[relation], self.facts[subject][relation])

    def subjects(self, target: int, relation: str, kind: str) -> list[int]:
        """All entities of a type whose object of a relation is `target`."""
        found = self._subjects.get((target, relation), [])
        return [index for index in found if self.entities[index].kind == kind]

    def incoming(self, target: int, relations: Collection[str]) -> list[Fact]:
        """All facts of these relations whose object is `target`."""
        return [
            Fact(subject, RELATIONS[name], target)
            for name in relations
            for subject in self._subjects.get((target, name), ())
        ]

    def implying(self, fact: Fact) -> list[Fact]:
        """The facts in the opposite direction that imply a fact: a country's capital implies that city's location."""
        if not isinstance(fact.object, int):
            return []
        facts = self.facts[fact.object]
        return [
            Fact(fact.object, row, fact.subject)
            for row in _IMPLYING.get(fact.relation.name, ())
            if facts.get(row.name) == fact.subject
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
        **asdict(naming),
        index=index,
        id=id,
        kind=draft.kind,
        title=title,
        described=described,
        duplicate_of=draft.duplicate_of,
    )
