"""What an Atlas world is made of: entity types and relations.

In: the tables in `tables/*.yaml`, with rows of `EntityType` and `Relation`. Out: `TYPES` and `RELATIONS` by name, the
relations of each type, and the words of all wordings, which generated names must not use. Every sentence and question
of a world is generated from these wordings. A wording is a string with these slots:

    {S} {O}    subject and object of a fact         {T} {aT}   the subject's type, without and with a/an
    {A} {B}    the two sides of a comparison        {aO}       the object with a/an
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter

from stepladder.core.io.yaml_tables import read_table


class NumberRange(NamedTuple):
    """A relation to a number, with its range and the units that may follow it."""

    relation: str
    low: int
    high: int
    step: int
    units: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EntityType:
    """A type of entity."""

    name: str
    #: Number of articles of this type per thousand.
    share: int
    #: The relation of the first sentence of an article, which defines the entity.
    lead: str
    noun: str
    #: Range of years in which its entities begin, so that people, works and founders are contemporaries.
    years: tuple[int, int]
    #: The relations to the first year, to the date of the beginning, and to the country.
    year_relation: str = ""
    date_relation: str = ""
    country_relation: str = ""
    #: Relations to cities, mostly of the home country, and relations to people, with their occupations.
    cities: tuple[str, ...] = ()
    people: dict[str, str] = field(default_factory=dict)
    #: The relation to a random number.
    number: NumberRange | None = None
    #: Template for a name that is unique.
    plain: str = "{}"
    #: Template for a name that may be ambiguous.
    described: str = "{}"
    #: Sentences that state an alias.
    alias_wordings: tuple[str, ...] = ()
    #: The relative pronoun: the person who, the river that.
    relative: str = "that"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Wordings that compare two subjects by a date or a number."""

    #: Questions for the subject with the greater (later) or smaller (earlier) value.
    greater: str
    smaller: str
    #: Yes/no questions: is A's value greater, is it smaller.
    is_greater: str
    is_smaller: str
    #: Words that compare the values themselves, as in "Is #1 later than #2?".
    words: tuple[str, str] = ("greater", "smaller")


@dataclass(frozen=True, slots=True)
class Relation:
    """A functional relation: each subject has at most one object, so a question for it has one answer.

    Questions for the subject need wordings in `inverse_asks`, and an object that only one subject of its type has.
    """

    name: str
    subjects: tuple[str, ...]
    #: An entity type, or what is not an entity: `date`, `year`, `number`, `term`.
    object: str
    #: Sentences that state the fact.
    facts: tuple[str, ...]
    #: Questions for the object.
    asks: tuple[str, ...]
    #: Noun phrases for the object, which can be nested in longer questions. Entities only.
    phrases: tuple[str, ...] = ()
    #: Predicate of the subject, for questions with two conditions: "was born in {O}".
    predicate: str = ""
    inverse_asks: tuple[str, ...] = ()
    inverse_phrases: tuple[str, ...] = ()
    #: Yes/no question: do two subjects have the same object.
    same: str = ""
    compare: Comparison | None = None
    #: The relation that follows in the opposite direction: a capital is located in its country. Texts that state this
    #: relation also state the implied one.
    implies: str = ""

    @property
    def symmetric(self) -> bool:
        """Whether the relation also holds in the opposite direction (spouses, twin cities)."""
        return self.implies == self.name


#: The order is part of the world: the same seed draws from the same lists.
_FOLDER = Path(__file__).with_name("tables")
_TABLES = [read_table(_FOLDER / f"{name}.yaml") for name in ("people", "places", "structures", "works")]

_types = TypeAdapter(list[EntityType]).validate_python([row for table in _TABLES for row in table["types"]])
TYPES: dict[str, EntityType] = {row.name: row for row in _types}

_relations = TypeAdapter(list[Relation]).validate_python([row for table in _TABLES for row in table["relations"]])
RELATIONS: dict[str, Relation] = {row.name: row for row in _relations}

#: The relations of each subject type, in the order of the tables.
RELATIONS_OF: dict[str, tuple[Relation, ...]] = {
    name: tuple(relation for relation in RELATIONS.values() if name in relation.subjects) for name in TYPES
}


def wordings(relation: Relation) -> tuple[str, ...]:
    """Every wording of a relation: sentences and questions."""
    compare = relation.compare
    texts = [*relation.facts, *relation.asks, *relation.phrases, *relation.inverse_asks]
    texts += [*relation.inverse_phrases, relation.predicate, relation.same]
    if compare is not None:
        texts += [compare.greater, compare.smaller, compare.is_greater, compare.is_smaller]
    return tuple(text for text in texts if text)


#: Lower-case words of the wordings. As names they would be hard to search for.
WORDING_WORDS: frozenset[str] = frozenset(
    word
    for relation in RELATIONS.values()
    for text in wordings(relation)
    for word in re.findall(r"[a-z]+", text.lower())
)
