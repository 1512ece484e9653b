"""What documents are made of: passages, questions about facts, comparisons, from one Atlas world."""

import random

from stepladder.core.trace import Passage
from stepladder.data.atlas import Atlas
from stepladder.data.atlas.articles import Library, write_library
from stepladder.data.atlas.catalogue import RELATIONS
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.phrasing import Link, Outline
from stepladder.data.atlas.world import Fact


class Source:
    """One world, and what can be drawn from it at random."""

    def __init__(self, atlas: Atlas, rng: random.Random) -> None:
        self.world, self.rng = atlas.world, rng
        self.library: Library = write_library(atlas.world)
        self.passages = {passage.id: passage for passage in atlas.passages}
        self.listed = atlas.passages
        self.index = {passage.id: index for index, passage in enumerate(atlas.passages)}
        self.questions = [question for split in atlas.questions.values() for question in split]
        self.long = [question for question in self.questions if len(question.hops) > 1]
        self.twins: dict[int, list[int]] = {}
        for entity in self.world.entities:
            if entity.duplicate_of >= 0:
                self.twins.setdefault(entity.duplicate_of, []).append(entity.index)
                self.twins.setdefault(entity.index, []).append(entity.duplicate_of)
        self.comparable: dict[tuple[str, str], list[int]] = {}
        for entity in self.world.entities:
            for name in self.world.facts[entity.index]:
                if RELATIONS[name].compare is not None:
                    self.comparable.setdefault((entity.kind, name), []).append(entity.index)

    def any_index(self) -> int:
        return self.rng.randrange(len(self.listed))

    def any_passage(self) -> Passage:
        return self.rng.choice(self.listed)

    def own_fact(self, subject: int) -> Fact:
        return self.world.fact(subject, self.rng.choice(list(self.world.facts[subject])))

    def question_about(self, fact: Fact, *, inverse: bool = False) -> tuple[str, str, list[Passage]]:
        """A question for one end of a fact, its answer, and the passages that state it."""
        outline = Outline(self.world, self.library, self.rng)
        link = Link(fact, inverse)
        known = fact.object if inverse else fact.subject
        assert isinstance(known, int)
        pointer = outline.start(known, subject=not inverse)
        gold = [self.passages[each] for each in self.library.stating(fact)]
        if pointer.name in self.world.entities[known].aliases:  # only its own article tells that name
            gold = [self.listed[known]]
        return outline.ask(pointer, link), self.world.spellings(link.target)[0], gold

    def among_others(self, gold: list[Passage], subject: int, count: int) -> tuple[list[Passage], int]:
        """One passage that states the fact among others, likely near-duplicates; and its place, from 1."""
        one = gold[0] if self.rng.random() < 0.8 else self.rng.choice(gold)
        shown = [one]
        others = [self.listed[twin] for twin in self.twins.get(subject, ())]
        others += [self.any_passage() for _ in range(count)]
        shown += [each for each in others if each is not one][: count - 1]
        self.rng.shuffle(shown)
        return shown, shown.index(one) + 1

    def comparison(self) -> tuple[str, str]:
        rng, world = self.rng, self.world
        (_, name), members = rng.choice(list(self.comparable.items()))
        first, second = rng.choice(members), rng.choice(members)
        a, b = world.facts[first][name], world.facts[second][name]
        compare = RELATIONS[name].compare
        assert isinstance(a, Value)
        assert isinstance(b, Value)
        assert compare is not None
        if a.order == b.order:
            return self.sameness()
        greater = rng.random() < 0.5
        word = compare.words[0 if greater else 1]
        first_wins = (a.order > b.order) == greater
        if rng.random() < 0.4:
            return f"Is {a.spellings[0]} {word} than {b.spellings[0]}?", "yes" if first_wins else "no"
        one, other = world.entities[first], world.entities[second]
        left, right = (each.plain if rng.random() < 0.5 else each.described for each in (one, other))
        question = f"Which is {word}: {a.spellings[0]} for {left}, or {b.spellings[0]} for {right}?"
        return question, (one if first_wins else other).name

    def sameness(self) -> tuple[str, str]:
        one = self.world.entities[self.any_index()].name
        same = self.rng.random() < 0.5
        other = one if same else self.world.entities[self.any_index()].name
        return f"Are {one} and {other} the same?", "yes" if one == other else "no"
