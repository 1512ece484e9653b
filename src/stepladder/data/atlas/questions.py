"""Generate the questions of a split, of one to four searches each.

In: a `World`, its `Library`, the name of a split and a number of questions. Out: `Question`s with their gold hops, and
the chain of facts of each. A question uses only facts of its own split, so training questions share no fact with test
questions. No passage answers two hops, so the stated number of searches is really needed.

The kinds: `single` (one fact), `bridge` (each answer leads to the next), `comparison` (which of two values is greater),
`intersection` (the entity that meets two conditions) and `yes_no`. Comparisons and yes/no questions end with a
conclusion, which needs no passage and does not count as a search. Their entities, wording and answer alternate, so
that neither position nor wording nor relation correlates with the answer. Nor does the style of the names: pairs with
different objects are sampled like pairs with the same object.
"""

import random

from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question
from stepladder.data.atlas.articles import Library
from stepladder.data.atlas.catalogue import RELATIONS, RELATIONS_OF, TYPES, Relation
from stepladder.data.atlas.facts import order_of
from stepladder.data.atlas.phrasing import Chain, DraftQuestion, FactPath, Link, Outline, Pointer, Topic
from stepladder.data.atlas.splits import GUESSABLE, SplitFacts
from stepladder.data.atlas.world import Fact, World
from stepladder.data.decompositions.gold_passages import GoldPassage
from stepladder.data.gold_texts import with_gold_texts

#: Percentage of the questions by number of searches and kind.
MIX: dict[int, dict[str, int]] = {
    1: {"single": 13, "intersection": 2},
    2: {"bridge": 22, "comparison": 7, "yes_no": 6, "intersection": 5},
    3: {"bridge": 17, "comparison": 4, "yes_no": 3, "intersection": 4},
    4: {"bridge": 10, "comparison": 3, "yes_no": 2, "intersection": 2},
}
#: Types with at least two predicates, which can meet two conditions.
_JOINED = tuple(kind for kind in TYPES if sum(bool(row.predicate) for row in RELATIONS_OF[kind]) > 1)
#: How the searches of an intersection are distributed, besides the one that joins: hops to the first condition, hops
#: to the second, hops after the join.
_LAYOUTS: dict[int, tuple[tuple[int, int, int], ...]] = {
    1: ((0, 0, 0),),
    2: ((0, 1, 0), (0, 0, 1)),
    3: ((1, 1, 0), (0, 2, 0), (0, 1, 1)),
    4: ((1, 2, 0),),
}
_MAX_ATTEMPTS = 10_000

_COMPARED = tuple((kind, relation) for kind in TYPES for relation in RELATIONS_OF[kind] if relation.compare is not None)
_MATCHED = tuple((kind, relation) for kind in TYPES for relation in RELATIONS_OF[kind] if relation.same)

#: One side: an entity and the path to it.
Side = tuple[int, FactPath]


def write_questions(
    world: World, library: Library, split: str, count: int
) -> tuple[tuple[Question, ...], dict[str, Chain]]:
    """The questions of a split, in random order, and their chains by id."""
    rng = random.Random(seed_of("atlas", world.seed, "questions", split))
    sampler = QuestionSampler(world, library, split, rng)
    drafts = [sampler.sample(searches, kind, turn) for searches, kind, turn in _quotas(count)]
    rng.shuffle(drafts)
    # Titles are unique, so they suffice to recognize an article in another index.
    titles = {passage.id: GoldPassage(passage.title, (passage.id,)) for passage in library.passages}
    questions, chains = [], {}
    for number, draft in enumerate(drafts):
        hops = tuple(draft.outline.hops)
        gold = tuple(hop.passages for hop in hops if hop.passages)
        key = f"{world.name}-{split}-{number:05d}"
        question = Question(key, draft.text, draft.answers, hops, gold, draft.kind)
        questions.append(with_gold_texts(question, titles))
        chains[key] = draft.chain(world)
    return tuple(questions), chains


def _quotas(count: int) -> list[tuple[int, str, int]]:
    """(searches, kind, running number) of every question: the mix, rounded so that the total is exact."""
    quotas: list[tuple[int, str, int]] = []
    remainder = 0
    for searches, kinds in MIX.items():
        for kind, percent in kinds.items():
            quota, remainder = divmod(remainder + percent * count, 100)
            quotas += [(searches, kind, turn) for turn in range(quota)]
    return quotas


def _alternation(turn: int) -> tuple[bool, bool]:
    """Two independent choices: all four combinations in four turns, and each choice balanced in every two turns.

    >>> [_alternation(turn) for turn in range(4)]
    [(True, True), (False, False), (True, False), (False, True)]
    """
    return turn % 2 == 0, turn % 4 in (0, 3)


def _repeats_word(text: str) -> bool:
    """Whether a word is repeated because of nesting: the city where she was born born."""
    words = text.split()
    return any(one == other for one, other in zip(words, (*words[1:-1], words[-1].removesuffix("?"))))


def _contains_answer(draft: DraftQuestion) -> bool:
    """Whether the question contains the answer of a search, or a sub-question contains its own answer."""
    hops = draft.outline.hops
    for hop in hops:
        filled = hop.question
        for number, earlier in enumerate(hops, start=1):
            filled = filled.replace(f"#{number}", earlier.answer)
        text = f"{draft.text} {filled}".lower()
        if hop.passages and any(answer.lower() in text for answer in (hop.answer, *hop.aliases)):
            return True
    return False


def _needs_fewer_searches(draft: DraftQuestion) -> bool:
    """Whether a passage of one hop also answers another hop."""
    ids = [each for hop in draft.outline.hops for each in hop.passages]
    return len(set(ids)) < len(ids)


class QuestionSampler:
    """Samples questions of one split, and rejects those that are invalid or not new."""

    def __init__(self, world: World, library: Library, split: str, rng: random.Random) -> None:
        self._world, self._library, self._split, self._rng = world, library, split, rng
        self._facts = SplitFacts(world, split)
        self._texts: set[str] = set()
        self._chains: set[tuple[str, Chain]] = set()
        #: Number of yes/no questions about each topic so far: the next one gets the other answer.
        self._turns: dict[Topic, int] = {}

    def sample(self, searches: int, kind: str, turn: int) -> DraftQuestion:
        """A question with so many searches. `turn` alternates the two sides of comparisons."""
        for _ in range(_MAX_ATTEMPTS):
            draft = self.draw(searches, kind, turn)
            if draft is None or draft.text in self._texts:
                continue
            signature = (kind, tuple(sorted(draft.chain(self._world))))
            invalid = _repeats_word(draft.text) or _contains_answer(draft) or _needs_fewer_searches(draft)
            if signature in self._chains or invalid:
                continue
            self._texts.add(draft.text)
            self._chains.add(signature)
            if draft.topic is not None:
                self._turns[draft.topic] = draft.turn + 1
            return draft
        raise StepladderError(
            f"this world has too few facts for another {kind} question of {searches} searches in "
            f"{self._split}: ask for fewer questions or more passages"
        )

    def draw(self, searches: int, kind: str, turn: int) -> DraftQuestion | None:
        """One attempt at a question of a kind."""
        if kind in ("single", "bridge"):
            return self._bridge(searches, kind)
        if kind == "comparison":
            return self._comparison(searches, turn)
        if kind == "intersection":
            return self._intersection(searches)
        return self._yes_no(searches)

    def _bridge(self, searches: int, kind: str) -> DraftQuestion | None:
        """A path from entity to entity; its last fact may lead to a value."""
        rng, world = self._rng, self._world
        outline = Outline(world, self._library, rng)
        here = rng.randrange(len(world.entities))
        pointer, visited, preface, inverse = Pointer("", ""), {here}, "", False
        for position in range(searches):
            last = position == searches - 1
            links = self._facts.links(here, visited, last)
            if position > 0:
                links = [link for link in links if link.fact.relation.name not in GUESSABLE]
            if inverse:  # the article just found states all facts of its entity: only other articles need a search
                links = [link for link in links if link.inverse]
            if not links:
                return None
            link = rng.choice(links)
            inverse = link.inverse
            if position == 0:
                pointer = outline.start(here, subject=not link.inverse)
            if last:
                text = preface + outline.ask(pointer.phrase, link, nested=pointer.nested)
                outline.follow(pointer, link)
                # A question of one search is its own sub-question.
                text = outline.hops[0].question if searches == 1 else text
                return DraftQuestion(text, world.spellings(link.target), outline, kind)
            pointer = outline.follow(pointer, link)
            target = link.target
            assert isinstance(target, int)
            here = target
            visited.add(here)
            if 0 < position + 1 < searches - 1 and not preface and rng.random() < 0.4:
                # Long questions are easier to read as two sentences.
                preface, pointer = outline.pause(pointer, world.entities[here].kind)
        return None

    def _intersection(self, searches: int) -> DraftQuestion | None:
        """Two conditions that only one entity meets. The conditions and the answer may be a hop away."""
        world, rng = self._world, self._rng
        entity = world.entities[rng.choice(self._facts.members[rng.choice(_JOINED)])]
        facts = self._two_conditions(entity.index)
        if facts is None:
            return None
        *hops, tail = rng.choice(_LAYOUTS[searches])
        # The article that meets the conditions also states the entity's own facts: only other articles need a search.
        links = self._facts.links(entity.index, {entity.index}, last=True) if tail else []
        tails = [link for link in links if link.inverse]
        if tail and (not tails or entity.namesake):
            return None
        outline, preface = Outline(world, self._library, rng), ""
        conditions: list[tuple[Pointer, Fact]] = []
        for position, fact in enumerate(facts):
            assert isinstance(fact.object, int)
            path = self._facts.path_to(fact.object, hops[position], rng)
            if path is None or any(step.subject == entity.index for step in path):
                return None
            pointer = outline.lead(fact.object, path, subject=False)
            if path and position == 0:
                # Only the last condition may be nested: otherwise the second one could be read as part of the first.
                preface, pointer = outline.pause(pointer, world.entities[fact.object].kind)
            conditions.append((pointer, fact))
        text, pointer = outline.join(conditions)
        answers = entity.spellings
        if tail:
            link = rng.choice(tails)
            text = outline.ask(pointer.phrase, link, nested=pointer.nested)
            outline.follow(pointer, link)
            answers = world.spellings(link.target)
        return DraftQuestion(preface + text, answers, outline, "intersection")

    def _two_conditions(self, index: int) -> list[Fact] | None:
        """Two facts of an entity, each shared with other entities of its type, but not both with the same one."""
        world = self._world
        facts = [world.fact(index, name) for name in world.facts[index] if RELATIONS[name].predicate]
        facts = [fact for fact in facts if self._facts.contains(fact)]
        if len(facts) < 2:
            return None
        chosen = self._rng.sample(facts, 2)
        meeting = [
            set(world.subjects(fact.object, fact.relation.name, world.entities[index].kind))
            for fact in chosen
            if isinstance(fact.object, int)
        ]
        distinct = chosen[0].object != chosen[1].object
        return chosen if distinct and meeting[0] & meeting[1] == {index} and min(map(len, meeting)) > 1 else None

    # --- comparisons and yes/no questions

    def _next_topic(self) -> tuple[Topic, int]:
        """The topic of the next yes/no question and its turn; usually a topic that still needs the other answer."""
        rng = self._rng
        unbalanced = [topic for topic, turn in self._turns.items() if turn % 2 == 1]
        if unbalanced and rng.random() < 0.8:
            topic = rng.choice(unbalanced)
        else:
            kind, relation = rng.choice(_COMPARED if rng.random() < 0.3 else _MATCHED)
            topic = kind, relation.name
        return topic, self._turns.get(topic, rng.choice((0, 2)))

    def _comparison(self, searches: int, turn: int) -> DraftQuestion | None:
        """A question for the entity with the greater or smaller value."""
        world = self._world
        kind, relation = self._rng.choice(_COMPARED)
        pair = self._pair(kind, relation, searches, same=False)
        if pair is None or relation.compare is None:
            return None
        greater, first_wins = _alternation(turn)
        pair = self._ordered(pair, relation, first_greater=greater == first_wins)
        outline = Outline(world, self._library, self._rng)
        sides, references = self._sides(outline, pair, relation)
        winner = 0 if first_wins else 1
        wording = relation.compare.greater if greater else relation.compare.smaller
        text = wording.format(A=sides[0].phrase, B=sides[1].phrase, T=TYPES[kind].noun)
        word = relation.compare.words[0 if greater else 1]
        entity = world.entities[pair[winner][0]]
        answers = entity.spellings_as(sides[winner].name or entity.name)
        outline.add(
            f"Which is {word}: {references[0]} for {sides[0].reference}, or {references[1]} for {sides[1].reference}?",
            answers,
        )
        return DraftQuestion(text, answers, outline, "comparison")

    def _yes_no(self, searches: int) -> DraftQuestion | None:
        """A question whether a comparison is true, or whether two entities have the same object."""
        topic, turn = self._next_topic()
        kind, relation = topic[0], RELATIONS[topic[1]]
        greater, wanted = _alternation(turn)
        pair = self._pair(kind, relation, searches, same=wanted and relation.compare is None)
        if pair is None:
            return None
        outline = Outline(self._world, self._library, self._rng)
        if relation.compare is not None:
            pair = self._ordered(pair, relation, first_greater=greater == wanted)
            wording = relation.compare.is_greater if greater else relation.compare.is_smaller
            word = relation.compare.words[0 if greater else 1]
            sides, references = self._sides(outline, pair, relation)
            conclusion = f"Is {references[0]} {word} than {references[1]}?"
        else:
            wording = relation.same
            sides, references = self._sides(outline, pair, relation)
            conclusion = f"Are {references[0]} and {references[1]} the same?"
        text = wording.format(A=sides[0].phrase, B=sides[1].phrase, T=TYPES[kind].noun)
        answers = ("yes",) if wanted else ("no",)
        outline.add(conclusion, answers)
        return DraftQuestion(text, answers, outline, "yes_no", topic, turn)

    def _pair(self, kind: str, relation: Relation, searches: int, same: bool) -> tuple[Side, Side] | None:
        """Two entities to compare. Makes several attempts: otherwise types that are easy to pair would dominate."""
        attempts = (self._try_pair(kind, relation, searches, same) for _ in range(20))
        return next((pair for pair in attempts if pair is not None), None)

    def _try_pair(self, kind: str, relation: Relation, searches: int, same: bool) -> tuple[Side, Side] | None:
        """Two entities with equal or different objects, each with the path to it."""
        world, rng = self._world, self._rng
        one = rng.choice(self._facts.members[kind])
        if relation.name not in world.facts[one] or not self._facts.contains(world.fact(one, relation.name)):
            return None
        other = self._partner(one, kind, relation, same)
        if other is None or relation.name not in world.facts[other]:
            return None
        facts = world.fact(one, relation.name), world.fact(other, relation.name)
        if (facts[0].object == facts[1].object) != same or not self._facts.contains(facts[1]):
            return None
        if world.entities[one].name == world.entities[other].name:
            return None
        if not same and world.spellings(facts[0].object)[0] == world.spellings(facts[1].object)[0]:
            return None  # the names of two namesakes look the same
        if searches > 2 and relation.name in GUESSABLE:
            return None
        hops = {2: (0, 0), 3: rng.choice(((1, 0), (0, 1))), 4: (1, 1)}[searches]
        to_one = self._facts.path_to(one, hops[0], rng)
        to_other = self._facts.path_to(other, hops[1], rng, like=to_one or ())
        return None if to_one is None or to_other is None else ((one, to_one), (other, to_other))

    def _partner(self, one: int, kind: str, relation: Relation, same: bool) -> int | None:
        """The second entity. If the objects must differ, its name has the style of an entity with the same object."""
        world, rng = self._world, self._rng
        target = world.facts[one][relation.name]
        if not isinstance(target, int):
            return rng.choice(self._facts.members[kind])
        matching = [index for index in world.subjects(target, relation.name, kind) if index != one]
        if same or not matching:
            return rng.choice(matching) if matching else None
        return rng.choice(self._facts.by_style[kind, world.entities[rng.choice(matching)].style])

    def _ordered(self, pair: tuple[Side, Side], relation: Relation, first_greater: bool) -> tuple[Side, Side]:
        """The pair, swapped if necessary so that the first has the greater (or smaller) value."""
        one, other = (order_of(self._world.facts[end][relation.name]) for end, _ in pair)
        return pair if (one > other) == first_greater else (pair[1], pair[0])

    def _sides(self, outline: Outline, pair: tuple[Side, Side], relation: Relation) -> tuple[list[Pointer], list[str]]:
        """The two sides of a question, and the references to their values."""
        sides, references = [], []
        for end, path in pair:
            pointer = outline.lead(end, path)
            outline.follow(pointer, Link(self._world.fact(end, relation.name)))
            references.append(f"#{len(outline.hops)}")
            sides.append(pointer)
        return sides, references
