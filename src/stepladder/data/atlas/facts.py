"""Generate the facts of a world: the object of every relation for every entity.

In: drafts of all entities and a seeded generator. Out: one dictionary per entity, from relation name to object: the
index of an entity, or a `Value`. People have the right occupation and age, places are mostly in the home country,
and superlatives (longest river, highest mountain) are true.
"""

import random
from bisect import bisect_left
from collections.abc import Sequence

from stepladder.data.atlas import literals as values
from stepladder.data.atlas.catalogue import RELATIONS, TYPES
from stepladder.data.atlas.literals import Value
from stepladder.data.atlas.population import STYLES, Draft, Namer

Object = int | Value
Facts = dict[str, Object]

GENRES = ("folk", "jazz", "rock", "chamber", "dance", "electronic", "choral", "brass")

#: Share of the subjects that have these relations. All subjects have the other ones.
_OPTIONAL: dict[str, float] = {"died_in": 0.6, "mentor": 0.6, "based_on": 0.6}


class _Directory:
    """The candidates for objects: entities by type and home country, people by occupation and birth year."""

    def __init__(self, drafts: Sequence[Draft], rng: random.Random) -> None:
        self._rng = rng
        self._drafts = drafts
        self.of_kind: dict[str, list[int]] = {}
        self.of_role: dict[str, list[int]] = {}
        self.at_home: dict[tuple[str, int], list[int]] = {}
        for index, draft in enumerate(drafts):
            self.of_kind.setdefault(draft.kind, []).append(index)
            self.at_home.setdefault((draft.kind, draft.home), []).append(index)
            if draft.role:
                self.of_role.setdefault(draft.role, []).append(index)
        for people in self.of_role.values():
            people.sort(key=lambda index: (drafts[index].year, index))
        self._birth_years = {role: [drafts[index].year for index in people] for role, people in self.of_role.items()}
        homes = sorted(self.of_kind["country"], key=lambda index: drafts[index].home)
        self.country_at: tuple[int, ...] = tuple(homes)

    def contemporary(self, role: str, year: int) -> int:
        """A person with an occupation who is 24 to 62 years old in a year, or the one closest to that age."""
        people, births = self.of_role[role], self._birth_years[role]
        low, high = bisect_left(births, year - 62), bisect_left(births, year - 23)
        if low == high:
            return people[min(low, len(people) - 1)]
        return people[self._rng.randrange(low, high)]

    def year(self, index: int) -> int:
        return self._drafts[index].year

    def older(self, candidates: list[int], year: int) -> int:
        """A random candidate that existed in a year, or the oldest of eight random ones."""
        tried = []
        for _ in range(8):
            tried.append(self._rng.choice(candidates))
            if self.year(tried[-1]) <= year:
                return tried[-1]
        return min(tried, key=self.year)

    def place(self, kind: str, home: int, abroad: float) -> int:
        """A random place in the home country, or anywhere with probability `abroad`."""
        rng = self._rng
        return rng.choice(self.of_kind[kind] if rng.random() < abroad else self.at_home[kind, home])


def generate_facts(drafts: Sequence[Draft], namer: Namer, rng: random.Random) -> list[Facts]:
    """The facts of every entity, by relation name."""
    directory = _Directory(drafts, rng)
    facts: list[Facts] = [_own_facts(draft, directory, rng) for draft in drafts]
    _add_geography(drafts, facts, directory, namer, rng)
    _add_organizations(drafts, facts, directory, rng)
    _add_spouses(drafts, facts, directory, rng)
    _add_twin_cities(facts, directory, rng)
    _copy_places_to_near_duplicates(drafts, facts, rng)
    return facts


def _own_facts(draft: Draft, directory: _Directory, rng: random.Random) -> Facts:
    """The facts that do not depend on the facts of other entities."""
    kind, row, facts = draft.kind, TYPES[draft.kind], Facts()
    if row.year_relation:
        facts[row.year_relation] = values.year(draft.year)
    if row.date_relation:
        facts[row.date_relation] = values.date(draft.year, rng.randrange(1, 13), rng.randrange(1, 29))
    if row.number is not None:
        amount = rng.randrange(row.number.low, row.number.high, row.number.step)
        facts[row.number.relation] = values.number(amount, *row.number.units)
    if row.country_relation:
        facts[row.country_relation] = directory.country_at[draft.home]
    for relation, occupation in row.people.items():
        year = draft.year if kind not in ("city", "university") else rng.randrange(1900, 2005)
        facts[relation] = directory.contemporary(occupation, year)
    for relation in row.cities:
        if rng.random() < _OPTIONAL.get(relation, 1.0):
            facts[relation] = directory.place("city", draft.home, 0.0 if kind == "mountain" else 0.15)
    if kind == "person":
        facts["occupation"] = values.term(draft.role)
        facts["studied_at"] = directory.place("university", draft.home, 1.0)
        elder = directory.contemporary(draft.role, draft.year + 10)
        if rng.random() < _OPTIONAL["mentor"] and directory.year(elder) < draft.year:
            facts["mentor"] = elder
    if kind == "company":
        facts["industry"] = values.term(draft.role, "industry", "trade", "company")
    if kind == "band":
        facts["genre"] = values.term(rng.choice(GENRES), "music")
    return facts


def _add_geography(
    drafts: Sequence[Draft], facts: list[Facts], directory: _Directory, namer: Namer, rng: random.Random
) -> None:
    cities_on: dict[int, list[int]] = {}
    for city in directory.of_kind["city"]:
        rivers = directory.at_home["river", drafts[city].home]
        river = rng.choice([river for river in rivers if river not in cities_on] or rivers)
        facts[city]["stands_on"] = river
        cities_on.setdefault(river, []).append(city)
    for river in directory.of_kind["river"]:
        home = drafts[river].home
        facts[river]["source"] = directory.place("mountain", home, 0.0)
        if river in cities_on:  # a city at the mouth of a river stands on that river and no other
            facts[river]["river_mouth"] = rng.choice(cities_on[river])
    for bridge in directory.of_kind["bridge"]:
        facts[bridge]["spans"] = directory.place("river", drafts[bridge].home, 0.0)
    for country in directory.of_kind["country"]:
        home, style = drafts[country].home, rng.randrange(len(STYLES))
        facts[country]["capital"] = directory.at_home["city", home][0]
        facts[country]["longest_river"] = _largest(directory.at_home["river", home], facts, "river_length")
        facts[country]["highest_mountain"] = _largest(directory.at_home["mountain", home], facts, "height")
        facts[country]["official_language"] = values.term(namer.word(style))
        facts[country]["currency"] = values.term(namer.word(style).lower())


def _largest(places: list[int], facts: list[Facts], relation: str) -> int:
    return max(places, key=lambda place: order_of(facts[place][relation]))


def order_of(target: Object) -> int:
    """The sort key of a date or a number."""
    return target.order if isinstance(target, Value) else 0


def _add_organizations(drafts: Sequence[Draft], facts: list[Facts], directory: _Directory, rng: random.Random) -> None:
    kinds, roles = directory.of_kind, directory.of_role
    picks: dict[str, dict[str, list[int]]] = {
        "book": {"publisher": roles["publishing"]},
        "band": {"label": roles["recording"]},
        "ship": {"built_by": roles["shipbuilding"]},
        "club": {"sponsor": kinds["company"]},
        "museum": {"sponsor": kinds["company"]},
        "album": {"recorded_by": kinds["band"]},
        "painting": {"held_by": kinds["museum"], "depicts": kinds["mountain"]},
        "film": {"based_on": kinds["book"]},
    }
    for kind, relations in picks.items():
        for subject in kinds[kind]:
            for relation, candidates in relations.items():
                if rng.random() < _OPTIONAL.get(relation, 1.0):
                    facts[subject][relation] = directory.older(candidates, drafts[subject].year)
    for company in kinds["company"]:
        rivals = roles[drafts[company].role]
        if len(rivals) > 1:
            rival = rng.choice(rivals)
            while rival == company:
                rival = rng.choice(rivals)
            facts[company]["rival"] = rival


def _add_spouses(drafts: Sequence[Draft], facts: list[Facts], directory: _Directory, rng: random.Random) -> None:
    """Marry about half of the people to a person of about the same age."""
    people = sorted(directory.of_kind["person"], key=lambda index: (drafts[index].year, index))
    waiting: list[int] = []
    for person in people:
        if rng.random() < 0.55:
            waiting.append(person)
        if len(waiting) == 6:
            rng.shuffle(waiting)
            one, other = waiting.pop(), waiting.pop()
            facts[one]["spouse"], facts[other]["spouse"] = other, one


def _add_twin_cities(facts: list[Facts], directory: _Directory, rng: random.Random) -> None:
    cities = list(directory.of_kind["city"])
    rng.shuffle(cities)
    for one, other in zip(cities[0 : len(cities) // 2 : 2], cities[1 : len(cities) // 2 : 2]):
        facts[one]["twin_city"], facts[other]["twin_city"] = other, one


def _copy_places_to_near_duplicates(drafts: Sequence[Draft], facts: list[Facts], rng: random.Random) -> None:
    """Copy half of the places of the original to its near-duplicate, so that mainly the names distinguish them."""
    for index, draft in enumerate(drafts):
        if draft.duplicate_of < 0:
            continue
        for relation, target in facts[draft.duplicate_of].items():
            row = RELATIONS[relation]
            to_place = row.object in ("city", "university") and not row.symmetric and row.name != "river_mouth"
            if to_place and rng.random() < 0.5:
                facts[index][relation] = target
