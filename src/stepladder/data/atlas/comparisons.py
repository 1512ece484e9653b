"""Sample questions about two entities: comparisons and yes/no questions.

In: the facts of a split. Out: `DraftQuestion`s. The order of the entities, the wording and the answer alternate, so
that neither position nor wording nor relation correlates with the answer. Nor does the style of the names: pairs with
different objects are sampled like pairs with the same object.
"""

import random

from stepladder.data.atlas.articles import Library
from stepladder.data.atlas.catalogue import RELATIONS, RELATIONS_OF, TYPES, Relation
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.phrasing import DraftQuestion, FactPath, Link, Outline, Pointer, Topic
from stepladder.data.atlas.splits import GUESSABLE, SplitFacts
from stepladder.data.atlas.world import World

_COMPARED = tuple((kind, relation) for kind in TYPES for relation in RELATIONS_OF[kind] if relation.compare is not None)
_MATCHED = tuple((kind, relation) for kind in TYPES for relation in RELATIONS_OF[kind] if relation.same)

#: One side: an entity and the path to it.
Side = tuple[int, FactPath]


def _alternation(turn: int) -> tuple[bool, bool]:
    """Two independent choices: all four combinations in four turns, and each choice balanced in every two turns.

    >>> [_alternation(turn) for turn in range(4)]
    [(True, True), (False, False), (True, False), (False, True)]
    """
    return turn % 2 == 0, turn % 4 in (0, 3)


class ComparisonSampler:
    """Samples comparisons and yes/no questions of one split."""

    def __init__(self, world: World, library: Library, facts: SplitFacts, rng: random.Random) -> None:
        self._world, self._library, self._facts, self._rng = world, library, facts, rng
        #: Number of yes/no questions about each topic so far.
        self._turns: dict[Topic, int] = {}

    def accept(self, draft: DraftQuestion) -> None:
        """Record an accepted yes/no question: the next one about its topic gets the other answer."""
        if draft.topic is not None:
            self._turns[draft.topic] = draft.turn + 1

    def _next_topic(self) -> tuple[Topic, int]:
        """The topic of the next yes/no question and its turn; usually a topic that still needs the other answer."""
        rng = self._rng
        unbalanced = [topic for topic, turn in self._turns.items() if turn % 2 == 1]
        if unbalanced and rng.random() < 0.8:
            topic = rng.choice(unbalanced)
        else:
            kind, relation = rng.choice(_COMPARED if rng.random() < 0.3 else _MATCHED)
            topic = kind, relation.name
        return topic, self._turns.get(topic, rng.choice((0, 2)))

    def comparison(self, searches: int, turn: int) -> DraftQuestion | None:
        """A question for the entity with the greater or smaller value."""
        world = self._world
        kind, relation = self._rng.choice(_COMPARED)
        pair = self._pair(kind, relation, searches, same=False)
        if pair is None or relation.compare is None:
            return None
        greater, first_wins = _alternation(turn)
        pair = self._ordered(pair, relation, first_greater=greater == first_wins)
        outline = Outline(world, self._library, self._rng)
        sides, references = self._sides(outline, pair, relation)
        winner = 0 if first_wins else 1
        wording = relation.compare.greater if greater else relation.compare.smaller
        text = wording.format(A=sides[0].phrase, B=sides[1].phrase, T=TYPES[kind].noun)
        word = relation.compare.words[0 if greater else 1]
        entity = world.entities[pair[winner][0]]
        answers = entity.spellings_as(sides[winner].name or entity.name)
        outline.conclude(
            f"Which is {word}: {references[0]} for {sides[0].reference}, or {references[1]} for {sides[1].reference}?",
            answers,
        )
        return DraftQuestion(text, answers, outline, "comparison")

    def yes_no(self, searches: int) -> DraftQuestion | None:
        """A question whether a comparison is true, or whether two entities have the same object."""
        topic, turn = self._next_topic()
        kind, relation = topic[0], RELATIONS[topic[1]]
        greater, wanted = _alternation(turn)
        pair = self._pair(kind, relation, searches, same=wanted and relation.compare is None)
        if pair is None:
            return None
        outline = Outline(self._world, self._library, self._rng)
        if relation.compare is not None:
            pair = self._ordered(pair, relation, first_greater=greater == wanted)
            wording = relation.compare.is_greater if greater else relation.compare.is_smaller
            word = relation.compare.words[0 if greater else 1]
            sides, references = self._sides(outline, pair, relation)
            conclusion = f"Is {references[0]} {word} than {references[1]}?"
        else:
            wording = relation.same
            sides, references = self._sides(outline, pair, relation)
            conclusion = f"Are {references[0]} and {references[1]} the same?"
        text = wording.format(A=sides[0].phrase, B=sides[1].phrase, T=TYPES[kind].noun)
        answers = ("yes",) if wanted else ("no",)
        outline.conclude(conclusion, answers)
        return DraftQuestion(text, answers, outline, "yes_no", topic, turn)

    def _pair(self, kind: str, relation: Relation, searches: int, same: bool) -> tuple[Side, Side] | None:
        """Two entities to compare. Makes several attempts: otherwise types that are easy to pair would dominate."""
        for _ in range(20):
            pair = self._try_pair(kind, relation, searches, same)
            if pair is not None:
                return pair
        return None

    def _try_pair(self, kind: str, relation: Relation, searches: int, same: bool) -> tuple[Side, Side] | None:
        """Two entities with equal or different objects, each with the path to it."""
        world, rng = self._world, self._rng
        one = rng.choice(self._facts.members[kind])
        if relation.name not in world.facts[one] or not self._facts.contains(world.fact(one, relation.name)):
            return None
        other = self._partner(one, kind, relation, same)
        if other is None or relation.name not in world.facts[other]:
            return None
        facts = world.fact(one, relation.name), world.fact(other, relation.name)
        if (facts[0].object == facts[1].object) != same or not self._facts.contains(facts[1]):
            return None
        if world.entities[one].name == world.entities[other].name:
            return None
        if not same and world.spellings(facts[0].object)[0] == world.spellings(facts[1].object)[0]:
            return None  # the names of two namesakes look the same
        if searches > 2 and relation.name in GUESSABLE:
            return None
        hops = {2: (0, 0), 3: rng.choice(((1, 0), (0, 1))), 4: (1, 1)}[searches]
        to_one = self._facts.path_to(one, hops[0], rng)
        to_other = self._facts.path_to(other, hops[1], rng, like=to_one or ())
        return None if to_one is None or to_other is None else ((one, to_one), (other, to_other))

    def _partner(self, one: int, kind: str, relation: Relation, same: bool) -> int | None:
        """The second entity. If the objects must differ, its name has the style of an entity with the same object."""
        world, rng = self._world, self._rng
        target = world.facts[one][relation.name]
        if not isinstance(target, int):
            return rng.choice(self._facts.members[kind])
        matching = [index for index in world.subjects(target, relation.name, kind) if index != one]
        if same or not matching:
            return rng.choice(matching) if matching else None
        return rng.choice(self._facts.by_style[kind, world.entities[rng.choice(matching)].style])

    def _ordered(self, pair: tuple[Side, Side], relation: Relation, first_greater: bool) -> tuple[Side, Side]:
        """The pair, swapped if necessary so that the first has the greater (or smaller) value."""
        values = [self._world.facts[end][relation.name] for end, _ in pair]
        orders = [value.order if isinstance(value, Value) else 0 for value in values]
        return pair if (orders[0] > orders[1]) == first_greater else (pair[1], pair[0])

    def _sides(self, outline: Outline, pair: tuple[Side, Side], relation: Relation) -> tuple[list[Pointer], list[str]]:
        """The two sides of a question, and the references to their values."""
        sides, references = [], []
        for end, path in pair:
            pointer = outline.lead(end, path)
            outline.follow(pointer, Link(self._world.fact(end, relation.name)))
            references.append(f"#{len(outline.hops)}")
            sides.append(pointer)
        return sides, references
