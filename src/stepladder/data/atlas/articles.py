"""Write the articles: one passage of 40 to 120 words per entity of a world.

In: a `World`. Out: `Library`: the passages, and which passages state each fact. A passage states all facts of its own
entity and a few facts of related entities, as distractors. Other entities are named by the titles of their articles;
aliases occur only in the entity's own article. Near-duplicates use the same wordings.
"""

import random
from dataclasses import dataclass
from typing import NamedTuple

from stepladder.core.seeding import seed_of
from stepladder.core.trace import Passage
from stepladder.data.atlas.catalogue import RELATIONS, RELATIONS_OF, TYPES
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.world import Entity, Fact, World

#: Facts of related entities are added until an article has this many words.
_MIN_WORDS = 44

#: Types whose names are ambiguous on their own; texts usually add the type ("the river Velmora").
OFTEN_DESCRIBED = ("book", "film", "band", "album", "painting", "ship", "river")

_INVERTIBLE = tuple(name for name, relation in RELATIONS.items() if relation.inverse_asks)


@dataclass(frozen=True, slots=True)
class Library:
    """The passages of a world, in the order of its entities, and the passages that state each fact."""

    world: World
    passages: tuple[Passage, ...]
    #: Other articles that state a fact: indices by subject and relation.
    mentions: dict[tuple[int, str], tuple[int, ...]]

    def stating(self, fact: Fact) -> tuple[str, ...]:
        """Ids of all passages that state a fact or one that implies it; the subject's own passage is the first."""
        indices: list[int] = []
        for each in (fact, *self.world.implying(fact)):
            indices += [each.subject, *self.mentions.get((each.subject, each.relation.name), ())]
        return tuple(self.passages[index].id for index in dict.fromkeys(indices))


def write_library(world: World) -> Library:
    """Write every article."""
    passages: list[Passage] = []
    mentions: dict[tuple[int, str], list[int]] = {}
    for entity in world.entities:
        article = _Article(world, entity)
        passages.append(Passage(entity.id, entity.title, article.text))
        for fact in article.stated:
            mentions.setdefault((fact.subject, fact.relation.name), []).append(entity.index)
    return Library(world, tuple(passages), {key: tuple(indices) for key, indices in mentions.items()})


class _Draws(NamedTuple):
    """Random draws for one relation of an article, made whether or not its subject has such a fact."""

    position: float
    wording: float
    join: float
    name: float


class _Article:
    """Writes one article."""

    def __init__(self, world: World, entity: Entity) -> None:
        # A near-duplicate uses the draws of its original, so that both texts differ only in their facts.
        # "course" is a fixed label: renaming it would change every world.
        original = entity.duplicate_of if entity.duplicate_of >= 0 else entity.index
        rng = random.Random(seed_of("atlas", world.seed, "course", original))
        self._pronoun = rng.choice(("he", "she")) if entity.kind == "person" else "it"
        self._draws = {
            relation.name: _Draws(*(rng.random() for _ in range(4))) for relation in RELATIONS_OF[entity.kind]
        }
        self._rng = random.Random(seed_of("atlas", world.seed, "article", entity.index))
        self._world, self._entity = world, entity
        #: Facts of other entities that the text states.
        self.stated: list[Fact] = []
        self.text = self._write()

    def _write(self) -> str:
        world, entity, row = self._world, self._entity, TYPES[self._entity.kind]
        own = [world.fact(entity.index, name) for name in world.facts[entity.index]]
        own.sort(key=lambda fact: (fact.relation.name != row.lead, self._draws[fact.relation.name].position))
        lead, others = own[0], own[1:]
        sentences = [self._fill(self._wording(lead), entity.plain, lead)]
        sentences += [self._rng.choice(row.alias_wordings).format(alias) for alias in entity.aliases]
        sentences += self._body(others)
        words = sum(len(sentence.split()) for sentence in sentences)
        for number, fact in enumerate(self._related_facts(own)):
            if words >= _MIN_WORDS and number > 0:
                break
            self.stated.append(fact)
            other = world.entities[fact.subject]
            names_its_type = fact.relation.name == TYPES[other.kind].lead
            subject = other.plain if names_its_type and not other.namesake else self._mention(other)
            sentences.append(self._fill(self._rng.choice(fact.relation.facts), subject, fact))
            words += len(sentences[-1].split())
        return " ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)

    def _wording(self, fact: Fact) -> str:
        draw = self._draws[fact.relation.name].wording
        return fact.relation.facts[int(draw * len(fact.relation.facts))]

    def _body(self, facts: list[Fact]) -> list[str]:
        """Sentences for the article's own facts, some of them joined by "and"."""
        sentences: list[str] = []
        can_join, named, previous, same_type = False, False, "", False
        for fact in facts:
            wording, draws = self._wording(fact), self._draws[fact.relation.name]
            # After a sentence about another entity of the same type, "it" and "the city" would be ambiguous.
            ambiguous, same_type = same_type, fact.relation.object == self._entity.kind
            subject_first = wording.startswith("{S} ")
            simple = subject_first and "," not in wording and " and " not in wording
            repeats = wording.split()[:3] == previous.split()[:3]  # "was founded in ... and was founded by ..."
            previous = wording
            if can_join and simple and not repeats and draws.join < 0.55:
                rest = self._fill(wording.removeprefix("{S} "), "", fact)
                sentences[-1] = f"{sentences[-1].removesuffix('.')} and {rest}"
                can_join, same_type = False, ambiguous or same_type
                continue
            # The name is repeated once, so that a search by name finds the article.
            use_name = bool(sentences) and not named
            if use_name or (ambiguous and self._entity.kind != "person"):
                subject = self._entity.plain
            else:
                subject = self._pronoun_or_noun(wording, 1.0 if ambiguous else draws.name)
            named = named or use_name
            sentences.append(self._fill(wording, subject, fact))
            can_join = simple
        return sentences

    def _pronoun_or_noun(self, wording: str, draw: float) -> str:
        """What a sentence calls the article's own subject instead of its name."""
        entity, noun = self._entity, TYPES[self._entity.kind].noun
        if wording.startswith("{S} ") and draw < 0.5:
            return self._pronoun
        if entity.kind == "person":
            return entity.name.split()[-1]
        return entity.plain if f" {noun} " in wording or f" {noun}." in wording else f"the {noun}"

    def _related_facts(self, own: list[Fact]) -> list[Fact]:
        """Facts of related entities: one that points here, then shuffled facts of the entities mentioned here."""
        world, rng, here = self._world, self._rng, self._entity.index
        incoming = world.incoming(here, _INVERTIBLE)
        rng.shuffle(incoming)
        outgoing: list[Fact] = []
        for fact in own:
            if isinstance(fact.object, int):
                names = [name for name, target in world.facts[fact.object].items() if target != here]
                rng.shuffle(names)
                outgoing += [world.fact(fact.object, name) for name in names[:2]]
        rng.shuffle(outgoing)
        return incoming[:1] + outgoing

    def _fill(self, wording: str, subject: str, fact: Fact) -> str:
        target = fact.object
        text = target.spellings[0] if isinstance(target, Value) else self._mention(self._world.entities[target])
        noun = TYPES[self._world.entities[fact.subject].kind].noun
        return wording.format(S=subject, O=text, aO=with_article(text), T=noun, aT=with_article(noun))

    def _mention(self, other: Entity) -> str:
        """How a sentence names another entity."""
        if other.namesake:  # the description that distinguishes namesakes states a fact
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
