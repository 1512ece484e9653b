"""Mistakes that small models make: a name half copied, a value from the next line, a question of one's own.

In: what is right, and the world it is about. Out: something wrong in its place, never the same.
"""

import re
from collections.abc import Mapping, Sequence

from pretrain.source import Source
from stepladder.core.answer_metrics import normalize
from stepladder.core.trace import Hop, Passage
from stepladder.oracle.corruptions import garble
from stepladder.oracle.decomposition import fill_references, references

#: Most words of a name that is looked for in a question.
_LONGEST_NAME = 4
_WORD = re.compile(r"[^\s?,.]+")


class Mistakes:
    """Wrong answers and wrong sub-questions about one world."""

    def __init__(self, source: Source, avoid: frozenset[str] = frozenset()) -> None:
        """No name that is half copied has a word of those to avoid in it."""
        self.source, self.rng, self.avoid = source, source.rng, avoid
        self.by_name = {name: each.index for each in source.world.entities for name in (*each.aliases, each.name)}

    def any_name(self) -> str:
        """The name of some entity."""
        return self.source.world.entities[self.source.any_index()].name

    def answer(self, right: str, passages: Sequence[Passage], near: int | None = None) -> str:
        """A wrong answer. `near`: the entity whose facts are likely taken for what was asked."""
        for _ in range(20):
            chance = self.rng.random()
            if chance < 0.45:
                wrong = self._garbled(right)
            elif chance < 0.85 and near is not None:
                fact = self.source.own_fact(near)
                wrong = self.source.world.spellings(fact.object)[0]
            elif chance < 0.93 and passages:
                wrong = self.rng.choice(passages).title
            else:
                wrong = self._other(right)
            if not _same(wrong, right):
                return wrong
        return right + " " + self.any_name()

    def _garbled(self, text: str) -> str:
        for _ in range(20):
            found = garble(text, self._other(text), self.rng)
            if self.avoid.isdisjoint(re.findall(r"[^\W\d_]+", found.lower())):
                return found
        return self.any_name()

    def _other(self, like: str) -> str:
        """Another name, often one that begins alike, for letters of the same style."""
        names = [self.any_name() for _ in range(6)]
        alike = [name for name in names if name[:1] == like[:1]]
        return alike[0] if alike else names[0]

    def query(self, number: int, hops: Sequence[Hop], answers: Mapping[int, str], asked: Sequence[str]) -> str:
        """A sub-question that is not to be asked now; `number` says which hop is next, from 1."""
        hop = hops[number - 1]
        needed = {normalize(fill_references(each.question, answers)) for each in hops}
        for _ in range(20):
            chance = self.rng.random()
            if chance < 0.15 and asked:
                return self.rng.choice(asked)
            if chance < 0.35 and (later := self._too_early(number, hops, answers)):
                wrong = later
            elif chance < 0.6:
                wrong = self._about_another(hop, answers)
            elif chance < 0.9:
                wrong = self._of_another_kind(hop, answers)
            else:
                wrong = self.own_question()
            if normalize(wrong) not in needed:
                return wrong
        return self.own_question()

    def own_question(self) -> str:
        """A question about anything."""
        return self.source.question_about(self.source.own_fact(self.source.any_index()))[0]

    def _too_early(self, number: int, hops: Sequence[Hop], answers: Mapping[int, str]) -> str | None:
        """A later hop that needs what is not known yet, asked about something else."""
        early = [
            each
            for place, each in enumerate(hops, start=1)
            if place > number and any(needs not in answers for needs in references(each.question))
        ]
        if not early:
            return None
        hop = self.rng.choice(early)
        known = [*answers.values(), self.any_name()]
        stand_ins = {each: self.rng.choice(known) for each in references(hop.question) if each not in answers}
        return fill_references(hop.question, {**answers, **stand_ins})

    def _about_another(self, hop: Hop, answers: Mapping[int, str]) -> str:
        """The next hop asked about something else, or about a name that was not copied well."""
        text = fill_references(hop.question, answers)
        name = self._subject(hop, answers)
        if name is None:
            return text
        index = self.by_name.get(name)
        twins = self.source.twins.get(index, ()) if index is not None else ()
        chance = self.rng.random()
        if chance < 0.6:
            other = self._garbled(name)
        elif twins and chance < 0.8:
            other = self.source.world.entities[self.rng.choice(twins)].name
        else:
            other = self.rng.choice([*answers.values(), self.any_name()])
        return text.replace(name, other)

    def _of_another_kind(self, hop: Hop, answers: Mapping[int, str]) -> str:
        """Something else about what the next hop asks about, or about what it leads to."""
        name = hop.answer if self.rng.random() < 0.3 else self._subject(hop, answers)
        index = self.by_name.get(name or "")
        if index is None or not self.source.world.facts[index]:
            return self.own_question()
        question, answer, _ = self.source.question_about(self.source.own_fact(index))
        return question if not _same(answer, hop.answer) else self.own_question()

    def _subject(self, hop: Hop, answers: Mapping[int, str]) -> str | None:
        """The name in a sub-question: of what it refers to, or the longest one it mentions."""
        known = [answers[each] for each in references(hop.question) if each in answers]
        if known:
            return self.rng.choice(known)
        words = [(match.start(), match.end()) for match in _WORD.finditer(hop.question)]
        for length in range(_LONGEST_NAME, 0, -1):
            for first, last in zip(words, words[length - 1 :]):
                if (name := hop.question[first[0] : last[1]]) in self.by_name:
                    return name
        return None


def _same(one: str, other: str) -> bool:
    return normalize(one) == normalize(other)
