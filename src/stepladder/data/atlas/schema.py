"""The shape of an Atlas world: what an entity type and a relation are.

Nothing flows in. `EntityType` and `Relation` are the rows of the tables in `people.py`, `places.py`,
`structures.py` and `works.py`, which `catalogue.py` joins; every sentence and question of a world is made from
their wordings.

A wording is a string with these slots:

    {S} {O}    subject and object of a fact         {T} {aT}   the subject's type, without and with a/an
    {A} {B}    the two sides of a comparison        {aO}       the object with a/an
"""

from dataclasses import dataclass

#: What a relation can point to besides an entity.
LITERALS = ("date", "year", "number", "term")


@dataclass(frozen=True, slots=True)
class EntityType:
    """A kind of thing the encyclopedia has articles on."""

    name: str
    #: Articles of this type in a thousand.
    share: int
    #: The relation whose sentence opens an article and says what the thing is.
    lead: str
    noun: str
    #: How a text names such an entity when nothing else has that name.
    plain: str = "{}"
    #: How a text names it when the name alone could mean something else.
    described: str = "{}"
    #: Sentences that tell another name of it.
    alias_wordings: tuple[str, ...] = ()

    @property
    def relative(self) -> str:
        """The relative pronoun: the person who, the river that."""
        return "who" if self.name == "person" else "that"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two subjects are compared by a date or a number."""

    #: Which has the larger, later value; which the smaller, earlier one.
    greater: str
    smaller: str
    #: The same as yes/no questions: is A's value greater, is it smaller.
    is_greater: str
    is_smaller: str
    #: Words for the values themselves, as in "Is #1 later than #2?".
    words: tuple[str, str] = ("greater", "smaller")


@dataclass(frozen=True, slots=True)
class Relation:
    """A functional relation: each subject has at most one object, so a question about it has one answer.

    The reverse direction is asked only where `inverse_asks` has wordings, and only for objects that exactly
    one subject of its type has.
    """

    name: str
    subjects: tuple[str, ...]
    #: An entity type, or one of `LITERALS`.
    object: str
    #: Sentences that state the fact.
    facts: tuple[str, ...]
    #: Questions for the object.
    asks: tuple[str, ...]
    #: Noun phrases for the object, to be nested in longer questions. Entities only.
    phrases: tuple[str, ...] = ()
    #: What the subject did, for questions that join two conditions: "was born in {O}".
    predicate: str = ""
    inverse_asks: tuple[str, ...] = ()
    inverse_phrases: tuple[str, ...] = ()
    #: Yes/no question whether two subjects have the same object.
    same: str = ""
    compare: Comparison | None = None
    #: The relation that then holds the other way round: a capital lies in its country. Texts that state this
    #: relation also state that one.
    implies: str = ""

    @property
    def symmetric(self) -> bool:
        """Whether the object has the subject as its object (spouses, twin cities)."""
        return self.implies == self.name

    @property
    def to_entity(self) -> bool:
        """Whether the object is an entity with an article of its own."""
        return self.object not in LITERALS
