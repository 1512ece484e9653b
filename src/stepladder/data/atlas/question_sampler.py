"""Drawing one question after the other, of one to four searches, from the facts of a split.

In: a `World`, its `Library` and a split. Out: `DraftQuestion`, a sound question in words with its gold hops. Every fact
belongs to exactly one split, and a question uses facts of its own split only: no chain of a test question, and
not even a part of one, is asked in training. No passage serves two hops, so that as many searches are needed as
a question counts.

The kinds: `single` (one fact), `bridge` (each answer leads to the next), `comparison` (two values, which is
greater), `intersection` (what meets two conditions) and `yes_no`. Comparisons and yes/no questions end with a
hop that needs no passage and does not count as a search; `comparing.py` draws them.
"""

import random

from stepladder.core.errors import StepladderError
from stepladder.data.atlas.articles import Library
from stepladder.data.atlas.comparisons import Comparer
from stepladder.data.atlas.phrasing import Chain, DraftQuestion, Outline, Pointer
from stepladder.data.atlas.splits import TOLD_BY_THE_WAY, SplitFacts
from stepladder.data.atlas.tables.catalogue import RELATIONS, RELATIONS_OF, TYPES
from stepladder.data.atlas.world import Fact, World

#: Types that can meet two conditions.
_JOINED = tuple(kind for kind in TYPES if sum(bool(row.predicate) for row in RELATIONS_OF[kind]) > 1)
#: How the searches of an intersection are spent besides the one that joins: hops to the first condition, hops to
#: the second, hops after the join.
_LAYOUTS: dict[int, tuple[tuple[int, int, int], ...]] = {
    1: ((0, 0, 0),),
    2: ((0, 1, 0), (0, 0, 1)),
    3: ((1, 1, 0), (0, 2, 0), (0, 1, 1)),
    4: ((1, 2, 0),),
}
_ATTEMPTS = 10_000


def _stutters(text: str) -> bool:
    """Whether nesting has put a word next to itself: the city where she was born born."""
    words = text.split()
    return any(one == other for one, other in zip(words, (*words[1:-1], words[-1].removesuffix("?"))))


def _gives_itself_away(asked: DraftQuestion) -> bool:
    """Whether the question tells what a search shall find, or a sub-question in full tells its own answer."""
    hops = asked.outline.hops
    for hop in hops:
        filled = hop.question
        for number, earlier in enumerate(hops, start=1):
            filled = filled.replace(f"#{number}", earlier.answer)
        told = f"{asked.text} {filled}".lower()
        if hop.passages and any(answer.lower() in told for answer in (hop.answer, *hop.aliases)):
            return True
    return False


def _needs_fewer_searches(asked: DraftQuestion) -> bool:
    """Whether a passage of one hop also answers another."""
    found = [identifier for hop in asked.outline.hops for identifier in hop.passages]
    return len(set(found)) < len(found)


class Writer:
    """Draws questions of one split until they are sound and new."""

    def __init__(self, world: World, library: Library, split: str, rng: random.Random) -> None:
        self._world, self._library, self._split, self._rng = world, library, split, rng
        self._facts = SplitFacts(world, split)
        self._comparer = Comparer(world, library, self._facts, rng)
        self._texts: set[str] = set()
        self._chains: set[tuple[str, Chain]] = set()

    def write(self, searches: int, kind: str, turn: int) -> DraftQuestion:
        """A question with so many searches; `turn` alternates the two sides of comparisons."""
        for _ in range(_ATTEMPTS):
            asked = self._draw(searches, kind, turn)
            if asked is None or asked.text in self._texts:
                continue
            signature = (kind, tuple(sorted(asked.chain(self._world))))
            unsound = _stutters(asked.text) or _gives_itself_away(asked) or _needs_fewer_searches(asked)
            if signature in self._chains or unsound:
                continue
            self._texts.add(asked.text)
            self._chains.add(signature)
            self._comparer.accept(asked)
            return asked
        raise StepladderError(
            f"this world has too few facts for another {kind} question of {searches} searches in "
            f"{self._split}: ask for fewer questions or more passages"
        )

    def _draw(self, searches: int, kind: str, turn: int) -> DraftQuestion | None:
        if kind in ("single", "bridge"):
            return self._bridge(searches, kind)
        if kind == "comparison":
            return self._comparer.comparison(searches, turn)
        if kind == "intersection":
            return self._intersection(searches)
        return self._comparer.yes_no(searches)

    def _bridge(self, searches: int, kind: str) -> DraftQuestion | None:
        """A walk from entity to entity; its last step may end at a value."""
        rng, world = self._rng, self._world
        outline = Outline(world, self._library, rng)
        here = rng.randrange(len(world.entities))
        pointer, visited, preface, inverse = Pointer("", ""), {here}, "", False
        for position in range(searches):
            last = position == searches - 1
            links = self._facts.links(here, visited, last)
            if position > 0:
                links = [link for link in links if link.fact.relation.name not in TOLD_BY_THE_WAY]
            if inverse:  # the article just found has all facts of its own entity: only others' need a search
                links = [link for link in links if link.inverse]
            if not links:
                return None
            link = rng.choice(links)
            inverse = link.inverse
            if position == 0:
                pointer = outline.start(here, subject=not link.inverse)
            if last:
                text = preface + outline.ask(pointer, link)
                outline.follow(pointer, link)
                # A question of one search is its own sub-question.
                text = outline.hops[0].question if searches == 1 else text
                return DraftQuestion(text, world.spellings(link.asked), outline, kind)
            pointer = outline.follow(pointer, link)
            target = link.asked
            assert isinstance(target, int)
            here = target
            visited.add(here)
            if 0 < position + 1 < searches - 1 and not preface and rng.random() < 0.4:
                # Long questions read better when they stop for breath.
                preface, pointer = outline.pause(pointer, world.entities[here].kind)
        return None

    def _intersection(self, searches: int) -> DraftQuestion | None:
        """Two conditions that together only one entity meets; conditions and answer may be a hop away."""
        world, rng = self._world, self._rng
        entity = world.entities[rng.choice(self._facts.members[rng.choice(_JOINED)])]
        facts = self._two_conditions(entity.index)
        if facts is None:
            return None
        *hops, tail = rng.choice(_LAYOUTS[searches])
        # The article that meets the conditions also has the entity's own facts: only others' need a search.
        onward = self._facts.links(entity.index, {entity.index}, last=True) if tail else []
        tails = [link for link in onward if link.inverse]
        if tail and (not tails or entity.namesake):
            return None
        outline, preface = Outline(world, self._library, rng), ""
        conditions: list[tuple[Pointer, Fact]] = []
        for position, fact in enumerate(facts):
            assert isinstance(fact.object, int)
            way = self._facts.way_to(fact.object, hops[position], rng)
            if way is None or any(step.subject == entity.index for step in way):
                return None
            pointer = outline.lead(fact.object, way, subject=False)
            if way and position == 0:
                # Of two conditions only the last may be nested, or the other could belong to what is nested in it.
                preface, pointer = outline.pause(pointer, world.entities[fact.object].kind)
            conditions.append((pointer, fact))
        text, pointer = outline.join(conditions)
        answers = entity.spellings
        if tail:
            link = rng.choice(tails)
            text = outline.ask(pointer, link)
            outline.follow(pointer, link)
            answers = world.spellings(link.asked)
        return DraftQuestion(preface + text, answers, outline, "intersection")

    def _two_conditions(self, index: int) -> list[Fact] | None:
        """Two facts of an entity that no other of its type has both of, though others have either."""
        world = self._world
        facts = [world.fact(index, name) for name in world.facts[index] if RELATIONS[name].predicate]
        facts = [fact for fact in facts if self._facts.holds(fact)]
        if len(facts) < 2:
            return None
        chosen = self._rng.sample(facts, 2)
        meeting = [
            set(world.subjects(fact.object, fact.relation.name, world.entities[index].kind))
            for fact in chosen
            if isinstance(fact.object, int)
        ]
        twice = chosen[0].object == chosen[1].object
        if twice or meeting[0] & meeting[1] != {index} or min(map(len, meeting)) < 2:
            return None
        return chosen
