"""Generate the questions of a split, of one to four searches each.

In: a `World`, its `Library`, the name of a split and a number of questions. Out: `Question`s with their gold hops, and
the chain of facts of each. A question uses only facts of its own split, so training questions share no fact with test
questions. No passage answers two hops, so the stated number of searches is really needed.

The kinds: `single` (one fact), `bridge` (each answer leads to the next), `comparison` (which of two values is greater),
`intersection` (the entity that meets two conditions) and `yes_no`. Comparisons and yes/no questions end with a
conclusion, which needs no passage and does not count as a search; `comparisons.py` samples them.
"""

import random

from stepladder.core.errors import StepladderError
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question
from stepladder.data.atlas.articles import Library
from stepladder.data.atlas.catalogue import RELATIONS, RELATIONS_OF, TYPES
from stepladder.data.atlas.comparisons import ComparisonSampler
from stepladder.data.atlas.phrasing import Chain, DraftQuestion, Outline, Pointer
from stepladder.data.atlas.splits import GUESSABLE, SplitFacts
from stepladder.data.atlas.world import Fact, World

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


def write_questions(
    world: World, library: Library, split: str, count: int
) -> tuple[tuple[Question, ...], dict[str, Chain]]:
    """The questions of a split, in random order, and their chains by id."""
    rng = random.Random(seed_of("atlas", world.seed, "questions", split))
    sampler = QuestionSampler(world, library, split, rng)
    drafts = [sampler.sample(searches, kind, turn) for searches, kind, turn in _quotas(count)]
    rng.shuffle(drafts)
    questions, chains = [], {}
    for number, draft in enumerate(drafts):
        hops = tuple(draft.outline.hops)
        gold = tuple(hop.passages for hop in hops if hop.passages)
        key = f"{world.name}-{split}-{number:05d}"
        questions.append(Question(key, draft.text, draft.answers, hops, gold, draft.kind))
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
        self._comparisons = ComparisonSampler(world, library, self._facts, rng)
        self._texts: set[str] = set()
        self._chains: set[tuple[str, Chain]] = set()

    def sample(self, searches: int, kind: str, turn: int) -> DraftQuestion:
        """A question with so many searches. `turn` alternates the two sides of comparisons."""
        for _ in range(_MAX_ATTEMPTS):
            draft = self._draw(searches, kind, turn)
            if draft is None or draft.text in self._texts:
                continue
            signature = (kind, tuple(sorted(draft.chain(self._world))))
            invalid = _repeats_word(draft.text) or _contains_answer(draft) or _needs_fewer_searches(draft)
            if signature in self._chains or invalid:
                continue
            self._texts.add(draft.text)
            self._chains.add(signature)
            self._comparisons.accept(draft)
            return draft
        raise StepladderError(
            f"this world has too few facts for another {kind} question of {searches} searches in "
            f"{self._split}: ask for fewer questions or more passages"
        )

    def _draw(self, searches: int, kind: str, turn: int) -> DraftQuestion | None:
        if kind in ("single", "bridge"):
            return self._bridge(searches, kind)
        if kind == "comparison":
            return self._comparisons.comparison(searches, turn)
        if kind == "intersection":
            return self._intersection(searches)
        return self._comparisons.yes_no(searches)

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
                text = preface + outline.ask(pointer, link)
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
            text = outline.ask(pointer, link)
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
