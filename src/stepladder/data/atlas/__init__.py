"""Atlas: a fictional encyclopedia generated from a seed, with questions that need one to four searches.

In: a size and a seed. Out: `Atlas`: passages, and questions with gold sub-questions, sub-answers and passages, in three
splits. All names are invented, so no model knows them from pretraining. The same size and seed give the same bytes on
every machine; another seed gives another world.

    >>> atlas = generate_atlas("small", seed=7)
    >>> len(atlas.passages), {split: len(questions) for split, questions in atlas.questions.items()}
    (2000, {'train': 1200, 'dev': 300, 'test': 500})

Modules: `catalogue` has the types and relations, `tables` their wordings; `literals`, `population`, `facts` and `world`
generate entities and facts; `articles` writes the passages; `phrasing`, `splits` and `questions`
generate the questions.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

from pydantic import AfterValidator

from stepladder.core.errors import unknown_name
from stepladder.core.trace import Passage, Question
from stepladder.data.atlas.articles import write_library
from stepladder.data.atlas.catalogue import RELATIONS
from stepladder.data.atlas.phrasing import Chain
from stepladder.data.atlas.questions import write_questions
from stepladder.data.atlas.world import World

__all__ = ["SIZES", "Atlas", "RelationName", "generate_atlas", "relations_by_question"]


def _known_relation(name: str) -> str:
    if name not in RELATIONS:
        raise ValueError(str(unknown_name("relation of Atlas", name, RELATIONS)))
    return name


#: The name of a relation, in settings.
RelationName = Annotated[str, AfterValidator(_known_relation)]

#: The sizes of a world: number of passages, and of questions by split.
SIZES: dict[str, tuple[int, dict[str, int]]] = {
    "small": (2_000, {"train": 1_200, "dev": 300, "test": 500}),
    "medium": (20_000, {"train": 6_000, "dev": 1_500, "test": 2_500}),
    "large": (100_000, {"train": 12_000, "dev": 3_000, "test": 5_000}),
}


@dataclass(frozen=True, slots=True)
class Atlas:
    """A generated encyclopedia and the questions about it."""

    size: str
    seed: int
    passages: tuple[Passage, ...] = field(repr=False)
    #: By split: train, dev, test.
    questions: dict[str, tuple[Question, ...]] = field(repr=False)
    #: The facts of each question, by question id: passage id of the subject, name of the relation. No fact is used in
    #: two splits.
    chains: dict[str, Chain] = field(repr=False)
    #: The entities and facts behind the texts.
    world: World = field(repr=False, compare=False)

    @property
    def name_words(self) -> frozenset[str]:
        """Every invented word, in lower case. Pass it as `avoid` to generate a world without these words."""
        return self.world.name_words


def generate_atlas(size: str = "small", seed: int = 0, avoid: Collection[str] = ()) -> Atlas:
    """Generate the world of a seed, without the words in `avoid` in its names."""
    if size not in SIZES:
        raise unknown_name("size of Atlas", size, SIZES)
    articles, counts = SIZES[size]
    world = World(articles, seed, avoid)
    library = write_library(world)
    questions: dict[str, tuple[Question, ...]] = {}
    chains: dict[str, Chain] = {}
    for split, count in counts.items():
        questions[split], found = write_questions(world, library, split, count)
        chains.update(found)
    return Atlas(size, seed, library.passages, questions, chains, world)


@lru_cache(maxsize=4)
def relations_by_question(size: str = "small", seed: int = 0) -> dict[str, frozenset[str]]:
    """The names of the relations that each question uses, by question id: `{"mentor", "born_in"}`."""
    chains = generate_atlas(size, seed).chains
    return {question: frozenset(relation for _, relation in chain) for question, chain in chains.items()}
