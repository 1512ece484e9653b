"""The articles: one passage of 40 to 120 words for each entity of a world.

In: a `World`. Out: `Library`, the passages and for every fact which passages state it. A passage states all
facts of its own entity and, as an encyclopedia does, a few of related ones: a reader has to pick. Others are named
as their own articles are headed; only there are their aliases told. Near-duplicates are worded alike.
"""

import random
from dataclasses import dataclass

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Passage
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.tables.catalogue import RELATIONS, RELATIONS_OF, TYPES
from stepladder.data.atlas.world import Entity, Fact, World

#: Asides are added up to this many words; most articles stay a little above it.
_ENOUGH_WORDS = 44

#: Types whose names tell little by themselves; texts mostly add what they are.
OFTEN_DESCRIBED = ("book", "film", "band", "album", "painting", "ship", "river")

_INVERTIBLE = tuple(name for name, relation in RELATIONS.items() if relation.inverse_asks)


@dataclass(frozen=True, slots=True)
class Library:
    """The passages of a world, in the order of its entities, and where each fact is stated."""

    world: World
    passages: tuple[Passage, ...]
    #: For facts that others' articles mention: subject and relation to the indices of those articles.
    mentions: dict[tuple[int, str], tuple[int, ...]]

    def stating(self, fact: Fact) -> tuple[str, ...]:
        """Ids of all passages that state a fact or one that implies it, the subject's own first."""
        places: list[int] = []
        for same in (fact, *self.world.implying(fact)):
            places += [same.subject, *self.mentions.get((same.subject, same.relation.name), ())]
        return tuple(self.passages[place].id for place in dict.fromkeys(places))


def write_library(world: World) -> Library:
    """Write every article."""
    passages: list[Passage] = []
    mentions: dict[tuple[int, str], list[int]] = {}
    for entity in world.entities:
        article = _Article(world, entity)
        passages.append(Passage(entity.id, entity.title, article.text))
        for fact in article.stated:
            mentions.setdefault((fact.subject, fact.relation.name), []).append(entity.index)
    return Library(world, tuple(passages), {key: tuple(places) for key, places in mentions.items()})


@dataclass(frozen=True, slots=True)
class _Course:
    """Chances drawn for one relation of an article, whether or not its subject has such a fact."""

    place: float
    wording: float
    join: float
    name: float


class _Article:
    """One article in the making."""

    def __init__(self, world: World, entity: Entity) -> None:
        # A near-duplicate draws the course of its model, so that both read alike wherever their facts allow.
        model = entity.twin if entity.twin >= 0 else entity.index
        course = random.Random(seed_of("atlas", world.seed, "course", model))
        self._pronoun = course.choice(("he", "she")) if entity.kind == "person" else "it"
        self._courses = {
            relation.name: _Course(course.random(), course.random(), course.random(), course.random())
            for relation in RELATIONS_OF[entity.kind]
        }
        self._rng = random.Random(seed_of("atlas", world.seed, "article", entity.index))
        self._world, self._entity = world, entity
        #: Facts of other entities that the text states, in an aside or in passing.
        self.stated: list[Fact] = []
        self.text = self._write()

    def _write(self) -> str:
        world, entity, row = self._world, self._entity, TYPES[self._entity.kind]
        own = [world.fact(entity.index, name) for name in world.facts[entity.index]]
        own.sort(key=lambda fact: (fact.relation.name != row.lead, self._courses[fact.relation.name].place))
        lead, others = own[0], own[1:]
        sentences = [self._fill(self._wording(lead), entity.plain, lead)]
        sentences += [self._rng.choice(row.alias_wordings).format(alias) for alias in entity.aliases]
        sentences += self._body(others)
        words = sum(len(sentence.split()) for sentence in sentences)
        for number, fact in enumerate(self._related(own)):
            if words >= _ENOUGH_WORDS and number > 0:
                break
            self.stated.append(fact)
            sentences.append(self._aside(fact))
            words += len(sentences[-1].split())
        return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)

    def _wording(self, fact: Fact) -> str:
        chance = self._courses[fact.relation.name].wording
        return fact.relation.facts[int(chance * len(fact.relation.facts))]

    def _body(self, facts: list[Fact]) -> list[str]:
        """Sentences for the article's own facts, some of them joined by "and"."""
        sentences: list[str] = []
        open_to_join, named, before, about_alike = False, False, "", False
        for fact in facts:
            wording, course = self._wording(fact), self._courses[fact.relation.name]
            # After a sentence about another of its type, "it" and "the city" would be unclear.
            unclear, about_alike = about_alike, fact.relation.object == self._entity.kind
            subject_first = wording.startswith("{S} ")
            simple = subject_first and "," not in wording and " and " not in wording
            echoes = wording.split()[:3] == before.split()[:3]  # "was founded in ... and was founded by ..."
            before = wording
            if open_to_join and simple and not echoes and course.join < 0.55:
                rest = self._fill(wording.removeprefix("{S} "), "", fact)
                sentences[-1] = f"{sentences[-1].removesuffix('.')} and {rest}"
                open_to_join, about_alike = False, unclear or about_alike
                continue
            # The name comes up again once, so that a search by name finds the article, but not twice running.
            use_name = bool(sentences) and not named
            if use_name or (unclear and self._entity.kind != "person"):
                subject = self._entity.plain
            else:
                subject = self._stand_in(wording, 1.0 if unclear else course.name)
            named = named or use_name
            sentences.append(self._fill(wording, subject, fact))
            open_to_join = simple
        return sentences

    def _stand_in(self, wording: str, chance: float) -> str:
        """What a sentence calls the article's own subject instead of its name."""
        entity, noun = self._entity, TYPES[self._entity.kind].noun
        if wording.startswith("{S} ") and chance < 0.5:
            return self._pronoun
        if entity.kind == "person":
            return entity.name.split()[-1]
        return entity.plain if f" {noun} " in wording or f" {noun}." in wording else f"the {noun}"

    def _related(self, own: list[Fact]) -> list[Fact]:
        """Facts worth an aside: one that points here, then facts of what this article mentions, mixed."""
        world, rng, here = self._world, self._rng, self._entity.index
        pointing = world.incoming(here, _INVERTIBLE)
        rng.shuffle(pointing)
        beyond: list[Fact] = []
        for fact in own:
            if isinstance(fact.object, int):
                names = [name for name, target in world.facts[fact.object].items() if target != here]
                rng.shuffle(names)
                beyond += [world.fact(fact.object, name) for name in names[:2]]
        rng.shuffle(beyond)
        return pointing[:1] + beyond

    def _aside(self, fact: Fact) -> str:
        other = self._world.entities[fact.subject]
        names_its_type = fact.relation.name == TYPES[other.kind].lead
        subject = other.plain if names_its_type and not other.namesake else self._mention(other)
        return self._fill(self._rng.choice(fact.relation.facts), subject, fact)

    def _fill(self, wording: str, subject: str, fact: Fact) -> str:
        target = fact.object
        text = target.spellings[0] if isinstance(target, Value) else self._mention(self._world.entities[target])
        noun = TYPES[self._world.entities[fact.subject].kind].noun
        return wording.format(S=subject, O=text, aO=with_article(text), T=noun, aT=with_article(noun))

    def _mention(self, other: Entity) -> str:
        """How a sentence names another entity."""
        if other.namesake:  # what tells it from the other is a fact, and so stated here
            self.stated.append(self._world.fact(other.index, TYPES[other.kind].lead))
        if other.homonym or other.namesake:
            return other.described
        return other.described if other.kind in OFTEN_DESCRIBED and self._rng.random() > 0.4 else other.plain


def with_article(noun: str) -> str:
    """A noun with a or an.

    >>> with_article("explorer"), with_article("novelist"), with_article("university")
    ('an explorer', 'a novelist', 'a university')
    """
    vowel_sound = noun[0].lower() in "aeiou" and not noun.lower().startswith("uni")
    return f"{'an' if vowel_sound else 'a'} {noun}"
