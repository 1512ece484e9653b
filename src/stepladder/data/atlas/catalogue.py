"""All entity types and relations of an Atlas world.

In: the tables in `tables/*.yaml`. Out: `TYPES` and `RELATIONS` by name, the relations of each type, and the words of
all wordings, which generated names must not use.
"""

import re
from pathlib import Path
from typing import Any

from stepladder.core.io.yaml_tables import read_table
from stepladder.data.atlas.schema import Comparison, EntityType, Relation


def _row(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row, with tuples for lists and a `Comparison` for its wordings."""
    row: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    return {**row, "compare": Comparison(**_row(row["compare"]))} if "compare" in row else row


#: The order is part of the world: the same seed draws from the same lists.
_FOLDER = Path(__file__).with_name("tables")
_TABLES = [read_table(_FOLDER / f"{name}.yaml") for name in ("people", "places", "structures", "works")]

TYPES: dict[str, EntityType] = {row["name"]: EntityType(**_row(row)) for table in _TABLES for row in table["types"]}

RELATIONS: dict[str, Relation] = {row["name"]: Relation(**_row(row)) for table in _TABLES for row in table["relations"]}

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
