"""Drawing one question after the other, of one to four searches, from the facts of a split.

In: a `World`, its `Library` and a split. Out: `Asked`, a sound question in words with its gold hops. Every fact
belongs to exactly one split, and a question uses facts of its own split only: no chain of a test question, and
not even a part of one, is asked in training.

The kinds: `single` (one fact), `bridge` (each answer leads to the next), `comparison` (two values, which is
greater), `intersection` (what meets two conditions) and `yes_no`. Comparisons and yes/no questions end with a
hop that needs no passage and does not count as a search.
"""

import random
from dataclasses import dataclass

from stepladder.data.atlas.catalogue import RELATIONS, RELATIONS_OF, TYPES
from stepladder.data.atlas.passages import Library
from stepladder.data.atlas.phrasing import Link, Outline, Pointer
from stepladder.data.atlas.schema import Relation
from stepladder.data.atlas.splits import split_of
from stepladder.data.atlas.values import Value
from stepladder.data.atlas.world import Fact, World
from stepladder.errors import StepladderError

_COMPARED = tuple((kind, relation) for kind in TYPES for relation in RELATIONS_OF[kind] if relation.compare is not None)
_MATCHED = tuple((kind, relation) for kind in TYPES for relation in RELATIONS_OF[kind] if relation.same)
#: Relations that can be asked inversely, by the type of their object.
_INVERTIBLE: dict[str, tuple[Relation, ...]] = {
    kind: tuple(row for row in RELATIONS.values() if row.object == kind and row.inverse_asks) for kind in TYPES
}
#: Relations that lead to an entity of a type.
_LEADING: dict[str, tuple[str, ...]] = {
    kind: tuple(row.name for row in RELATIONS.values() if row.object == kind and row.phrases) for kind in TYPES
}
#: Not asked of what another fact led to: the author of a novel is a novelist, as anyone can tell.
_TOLD_BY_THE_WAY = ("occupation", "industry")
_ATTEMPTS = 3_000

Chain = tuple[tuple[str, str], ...]
#: Two sides of a comparison: an entity and, where the question only describes it, the fact that leads to it.
Pair = tuple[tuple[int, Fact | None], tuple[int, Fact | None]]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question in words, before it has an id."""

    text: str
    answers: tuple[str, ...]
    outline: Outline
    kind: str

    def chain(self, world: World) -> Chain:
        """The facts it uses, in order: passage id of the subject, name of the relation."""
        return tuple((world.entities[fact.subject].id, fact.relation.name) for fact in self.outline.facts)


def _stutters(text: str) -> bool:
    """Whether nesting has put a word next to itself: the city where she was born born."""
    words = text.split()
    return any(one == other for one, other in zip(words, (*words[1:-1], words[-1].removesuffix("?"))))


class Writer:
    """Draws questions of one split until they are sound and new."""

    def __init__(self, world: World, library: Library, split: str, rng: random.Random) -> None:
        self._world, self._library, self._split, self._rng = world, library, split, rng
        self._texts: set[str] = set()
        self._chains: set[tuple[str, Chain]] = set()
        self._members: dict[str, list[int]] = {}
        for entity in world.entities:
            self._members.setdefault(entity.kind, []).append(entity.index)

    def write(self, searches: int, kind: str, turn: int) -> Asked:
        """A question with so many searches; `turn` alternates yes and no."""
        for _ in range(_ATTEMPTS):
            asked = self._draw(searches, kind, turn)
            if asked is None or asked.text in self._texts:
                continue
            signature = (kind, tuple(sorted(asked.chain(self._world))))
            if signature in self._chains or _stutters(asked.text) or self._gives_itself_away(asked):
                continue
            self._texts.add(asked.text)
            self._chains.add(signature)
            return asked
        raise StepladderError(
            f"this world has too few facts for another {kind} question of {searches} searches in "
            f"{self._split}: ask for fewer questions or more passages"
        )

    def _draw(self, searches: int, kind: str, turn: int) -> Asked | None:
        outline = Outline(self._world, self._library, self._rng)
        if kind in ("single", "bridge"):
            return self._bridge(outline, searches, kind)
        if kind == "comparison":
            return self._comparison(outline, searches)
        if kind == "intersection":
            return self._intersection(outline, searches)
        return self._yes_no(outline, searches, wanted=turn % 2 == 0)

    def _gives_itself_away(self, asked: Asked) -> bool:
        """Whether the question contains its answer, other than as one of the sides to choose from."""
        if asked.kind in ("comparison", "yes_no"):
            return False
        text = asked.text.lower()
        return any(answer.lower() in text for answer in asked.answers)

    # --- single and bridge

    def _bridge(self, outline: Outline, searches: int, kind: str) -> Asked | None:
        rng = self._rng
        here = rng.randrange(len(self._world.entities))
        pointer, visited, preface = outline.start(here), {here}, ""
        for position in range(searches):
            last = position == searches - 1
            links = self._links(here, visited, last)
            if position > 0:
                links = [link for link in links if link.fact.relation.name not in _TOLD_BY_THE_WAY]
            if not links:
                return None
            link = rng.choice(links)
            if last:
                text = preface + outline.ask(pointer, link)
                outline.follow(pointer, link)
                return Asked(text, self._world.spellings(link.asked), outline, kind)
            pointer = outline.follow(pointer, link)
            target = link.asked
            assert isinstance(target, int)
            here = target
            visited.add(here)
            if 0 < position + 1 < searches - 1 and not preface and rng.random() < 0.4:
                # Long questions read better when they stop for breath.
                preface = f"{rng.choice(('Think of', 'Take', 'Consider'))} {pointer.phrase}. "
                noun = TYPES[self._world.entities[here].kind].noun
                pointer = Pointer(f"that {noun}", pointer.reference, nested=False)
        return None

    def _links(self, here: int, visited: set[int], last: bool) -> list[Link]:
        """Facts of this split that lead on from an entity; before the last hop only to entities."""
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
        return [link for link in links if self._mine(link.fact)]

    def _may_lead_to(self, target: int | Value, visited: set[int], last: bool) -> bool:
        if isinstance(target, Value):
            return last
        # A namesake's name alone would not tell the next hop which of them is meant.
        return target not in visited and (last or not self._world.entities[target].namesake)

    def _mine(self, fact: Fact) -> bool:
        return split_of(self._world, fact) == self._split

    # --- comparison and yes/no

    def _comparison(self, outline: Outline, searches: int) -> Asked | None:
        kind, relation = self._rng.choice(_COMPARED)
        pair = self._pair(kind, relation, searches, same=False)
        if pair is None or relation.compare is None:
            return None
        greater = self._rng.random() < 0.5
        sides, orders, references = self._sides(outline, pair, relation)
        chosen = (orders[0] > orders[1]) == greater
        winner = self._world.entities[pair[0][0] if chosen else pair[1][0]]
        wording = relation.compare.greater if greater else relation.compare.smaller
        text = wording.format(A=sides[0].phrase, B=sides[1].phrase, T=TYPES[kind].noun)
        word = relation.compare.words[0 if greater else 1]
        outline.conclude(
            f"Which is {word}: {references[0]} for {sides[0].reference}, or {references[1]} for {sides[1].reference}?",
            winner.spellings,
        )
        return Asked(text, winner.spellings, outline, "comparison")

    def _yes_no(self, outline: Outline, searches: int, wanted: bool) -> Asked | None:
        by_value = self._rng.random() < 0.3
        kind, relation = self._rng.choice(_COMPARED if by_value else _MATCHED)
        pair = self._pair(kind, relation, searches, same=wanted and not by_value)
        if pair is None:
            return None
        sides, orders, references = self._sides(outline, pair, relation)
        if relation.compare is not None:
            # The pair decides which of the two wordings is true.
            greater = (orders[0] > orders[1]) == wanted
            wording = relation.compare.is_greater if greater else relation.compare.is_smaller
            word = relation.compare.words[0 if greater else 1]
            conclusion = f"Is {references[0]} {word} than {references[1]}?"
        else:
            wording = relation.same
            conclusion = f"Are {references[0]} and {references[1]} the same?"
        text = wording.format(A=sides[0].phrase, B=sides[1].phrase, T=TYPES[kind].noun)
        answers = ("yes",) if wanted else ("no",)
        outline.conclude(conclusion, answers)
        return Asked(text, answers, outline, "yes_no")

    def _pair(self, kind: str, relation: Relation, searches: int, same: bool) -> Pair | None:
        """Two entities to compare. Several tries, or types that are easy to pair would crowd out the others."""
        for _ in range(20):
            pair = self._try_pair(kind, relation, searches, same)
            if pair is not None:
                return pair
        return None

    def _try_pair(self, kind: str, relation: Relation, searches: int, same: bool) -> Pair | None:
        """Two entities with equal or different objects, each with the fact that leads to it, if one shall."""
        world, rng = self._world, self._rng
        one, other = rng.choice(self._members[kind]), rng.choice(self._members[kind])
        target = world.facts[one].get(relation.name)
        if same and isinstance(target, int):
            other = rng.choice(world.subjects(target, relation.name, kind))
        known = relation.name in world.facts[one] and relation.name in world.facts[other]
        if not known or world.entities[one].name == world.entities[other].name:
            return None
        facts = world.fact(one, relation.name), world.fact(other, relation.name)
        if (facts[0].object == facts[1].object) != same or not all(self._mine(fact) for fact in facts):
            return None
        if searches > 2 and relation.name in _TOLD_BY_THE_WAY:
            return None
        led = {2: (False, False), 3: rng.choice(((True, False), (False, True))), 4: (True, True)}[searches]
        ways: list[Fact | None] = []
        for end, wants_way in zip((one, other), led):
            way = self._way_to(end, like=ways[0] if ways else None) if wants_way else None
            if wants_way and way is None:
                return None
            ways.append(way)
        return (one, ways[0]), (other, ways[1])

    def _way_to(self, end: int, like: Fact | None = None) -> Fact | None:
        """A fact of this split that leads to an entity, of the same relation as another if there is one."""
        entity = self._world.entities[end]
        if entity.namesake:
            return None
        ways = [fact for fact in self._world.incoming(end, _LEADING[entity.kind]) if self._mine(fact)]
        alike = [fact for fact in ways if like is not None and fact.relation is like.relation]
        return self._rng.choice(alike or ways) if ways else None

    def _sides(self, outline: Outline, pair: Pair, relation: Relation) -> tuple[list[Pointer], list[int], list[str]]:
        """The two sides of a comparison: what they are, their values to compare, the references to these."""
        sides, orders, references = [], [], []
        for end, way in pair:
            pointer = self._lead(outline, end, way)
            fact = self._world.fact(end, relation.name)
            references.append(outline.follow(pointer, Link(fact)).reference)
            sides.append(pointer)
            orders.append(fact.object.order if isinstance(fact.object, Value) else 0)
        return sides, orders, references

    def _lead(self, outline: Outline, end: int, way: Fact | None) -> Pointer:
        if way is None:
            return outline.start(end)
        return outline.follow(outline.start(way.subject), Link(way))

    # --- intersection

    def _intersection(self, outline: Outline, searches: int) -> Asked | None:
        """Two conditions that together only one entity meets; conditions and answer may be a hop away."""
        world, rng = self._world, self._rng
        entity = world.entities[rng.randrange(len(world.entities))]
        facts = [world.fact(entity.index, name) for name in world.facts[entity.index]]
        facts = [fact for fact in facts if fact.relation.predicate and self._mine(fact)]
        if len(facts) < 2:
            return None
        facts = rng.sample(facts, 2)
        meeting = [
            set(world.subjects(fact.object, fact.relation.name, entity.kind))
            for fact in facts
            if isinstance(fact.object, int)
        ]
        if meeting[0] & meeting[1] != {entity.index} or min(map(len, meeting)) < 2:
            return None
        tails = [link for link in self._links(entity.index, {entity.index}, last=True) if link.fact not in facts]
        layouts = [(led, tail) for led in range(3) for tail in (0, 1) if 1 + led + tail == searches]
        led, tail = rng.choice(layouts)
        if tail and (not tails or entity.namesake):
            return None
        conditions: list[tuple[Pointer, Fact]] = []
        for position, fact in enumerate(facts):
            assert isinstance(fact.object, int)
            way = self._way_to(fact.object) if position < led else None
            if position < led and (way is None or way.subject == entity.index):
                return None
            conditions.append((self._lead(outline, fact.object, way), fact))
        text, pointer = outline.join(conditions)
        answers = entity.spellings
        if tail:
            link = rng.choice(tails)
            text = outline.ask(pointer, link)
            outline.follow(pointer, link)
            answers = world.spellings(link.asked)
        return Asked(text, answers, outline, "intersection")
