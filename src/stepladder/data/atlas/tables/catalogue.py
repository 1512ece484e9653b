"""All entity types and relations of an Atlas world.

In: the rows of `people.py`, `places.py`, `structures.py` and `works.py`. Out: `TYPES` and `RELATIONS` by name, the
relations of each type, and the words of all wordings, which generated names must not use.
"""

import re

from stepladder.data.atlas.schema import EntityType, Relation
from stepladder.data.atlas.tables import people, places, structures, works

_TABLES = (people, places, structures, works)

TYPES: dict[str, EntityType] = {row.name: row for table in _TABLES for row in table.TYPES}

RELATIONS: dict[str, Relation] = {row.name: row for table in _TABLES for row in table.RELATIONS}

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
