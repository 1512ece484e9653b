"""Formulate questions: from a path through facts to the text of a question and its sub-questions.

In: entities and facts, one at a time. Out: the nested noun phrases of a multi-hop question, and its gold hops, in which
`#1` stands for the answer of the first. A `Pointer` is the current end of the path, in both forms.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from stepladder.core.trace import Hop
from stepladder.data.atlas.articles import OFTEN_DESCRIBED, Library
from stepladder.data.atlas.catalogue import TYPES
from stepladder.data.atlas.facts import Object
from stepladder.data.atlas.world import Entity, Fact, World

#: The facts of a question, in order: passage id of the subject, name of the relation.
Chain = tuple[tuple[str, str], ...]
#: Facts that lead to an entity, each to the subject of the next; empty if the question names the entity.
FactPath = tuple[Fact, ...]
#: A type and the name of a relation.
Topic = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Link:
    """A fact and the direction of the question: for the object, or inversely for the subject."""

    fact: Fact
    inverse: bool = False

    @property
    def target(self) -> Object:
        """What the question asks for: the index of an entity, or a value."""
        return self.fact.subject if self.inverse else self.fact.object


@dataclass(frozen=True, slots=True)
class Pointer:
    """An entity or value in a question: as a phrase in the question, and as a reference in a sub-question."""

    phrase: str
    reference: str
    #: The name in the phrase; empty if the phrase is nested, that is, describes the entity by a path.
    name: str = ""

    @property
    def nested(self) -> bool:
        """Whether the phrase describes the entity by a path."""
        return not self.name


class Outline:
    """Builds the hops of one question, one at a time."""

    def __init__(self, world: World, library: Library, rng: random.Random) -> None:
        self._world, self._library, self._rng = world, library, rng
        self.hops: list[Hop] = []
        self.facts: list[Fact] = []

    def start(self, index: int, *, subject: bool = True) -> Pointer:
        """Begin at an entity that the question names.

        An alias is used only for the subject of a fact, because only its own article states it.
        """
        entity, chance = self._world.entities[index], self._rng.random()
        name, phrase = entity.name, entity.plain
        if entity.homonym or entity.namesake or chance > 0.6:
            phrase = entity.described
        elif entity.aliases and subject and chance < 0.3:
            name = entity.aliases[0]
            phrase = TYPES[entity.kind].described.format(name)
        return Pointer(phrase, phrase, name)

    def lead(self, end: int, path: FactPath, *, subject: bool = True) -> Pointer:
        """Begin at an entity, or at the start of the path to it."""
        pointer = self.start(path[0].subject if path else end, subject=subject or bool(path))
        for fact in path:
            pointer = self.follow(pointer, Link(fact))
        return pointer

    def pause(self, pointer: Pointer, kind: str) -> tuple[str, Pointer]:
        """A separate sentence for the current end of the path, and a pointer that continues from it."""
        preface = f"{self._rng.choice(('Think of', 'Take', 'Consider'))} {pointer.phrase}. "
        noun = TYPES[kind].noun
        return preface, Pointer(f"that {noun}", pointer.reference, noun)

    def follow(self, pointer: Pointer, link: Link) -> Pointer:
        """Add the hop that asks for the other end of a fact, and return a pointer to it."""
        target, relation = link.target, link.fact.relation
        question = self.ask(pointer.reference, link)
        self.add(question, self._world.spellings(target), self._library.stating(link.fact), [link.fact])
        if not isinstance(target, int):
            return Pointer(self._reference(), self._reference())
        wordings = relation.inverse_phrases if link.inverse else relation.phrases
        phrase = self._fill(wordings, pointer.phrase, link, pointer.nested)
        return Pointer(phrase, self._reference(self._world.entities[target]))

    def ask(self, known: str, link: Link, *, nested: bool = False) -> str:
        """The question for the other end of a fact. `known`: the phrase for this end, which may be nested."""
        relation = link.fact.relation
        return self._fill(relation.inverse_asks if link.inverse else relation.asks, known, link, nested)

    def _fill(self, wordings: tuple[str, ...], known: str, link: Link, nested: bool) -> str:
        if nested and (self._rng.random() < 0.85 or " and " in known):
            # A long phrase is easier to read at the end of a sentence than in the middle.
            wordings = tuple(text for text in wordings if text.rstrip("?").endswith("}")) or wordings
        noun = TYPES[self._world.entities[link.fact.subject].kind].noun
        return self._rng.choice(wordings).format(S=known, O=known, T=noun)

    def _reference(self, entity: Entity | None = None) -> str:
        """How later hops refer to the answer of the last hop."""
        number = f"#{len(self.hops)}"
        if entity is None:
            return number
        row = TYPES[entity.kind]
        return (row.described if entity.homonym or entity.kind in OFTEN_DESCRIBED else row.plain).format(number)

    def join(self, conditions: list[tuple[Pointer, Fact]]) -> tuple[str, Pointer]:
        """Add the hop that asks for the entity that meets all conditions; return its question and a pointer to it."""
        facts = [fact for _, fact in conditions]
        entity = self._world.entities[facts[0].subject]
        row = TYPES[entity.kind]

        def clause(texts: list[str]) -> str:
            return " and ".join(fact.relation.predicate.format(O=text) for text, fact in zip(texts, facts))

        condition = clause([pointer.phrase for pointer, _ in conditions])
        stated = [set(self._library.stating(fact)) for fact in facts]
        passages = tuple(each for each in self._library.stating(facts[0]) if all(each in ids for ids in stated))
        question = f"Which {row.noun} {clause([pointer.reference for pointer, _ in conditions])}?"
        self.add(question, entity.spellings, passages, facts)
        phrase = f"the {row.noun} {row.relative} {condition}"
        return f"Which {row.noun} {condition}?", Pointer(phrase, self._reference(entity))

    def add(
        self, question: str, answers: tuple[str, ...], passages: tuple[str, ...] = (), facts: Sequence[Fact] = ()
    ) -> None:
        """Add a hop. Without passages it is a conclusion, such as that of a comparison."""
        self.hops.append(Hop(question, answers[0], passages, answers[1:]))
        self.facts += facts


@dataclass(frozen=True, slots=True)
class DraftQuestion:
    """A question before it has an id."""

    text: str
    answers: tuple[str, ...]
    outline: Outline
    kind: str
    #: For yes/no questions: type and relation, and how many questions about them came before.
    topic: Topic | None = None
    turn: int = 0

    def chain(self, world: World) -> Chain:
        """The facts of the question."""
        return tuple((world.entities[fact.subject].id, fact.relation.name) for fact in self.outline.facts)
