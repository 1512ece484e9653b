"""Things that several tests need."""

import os
import sys
from collections.abc import Iterator, Sequence

import pytest

from stepladder.core.trace import Hop, Passage, Question
from stepladder.retrieval.base import Retriever

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes test at once: let each, and its children, have one thread
    import torch

    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)

QUESTION = Question(
    "q1",
    "Where was the architect of Orm Tower born?",
    ("Velm", "Velm City"),
    (Hop("Who designed Orm Tower?", "Ada Tarn", ("p1",)), Hop("Where was #1 born?", "Velm", ("p2",))),
    (("p1",), ("p2",)),
    "bridge",
)
PASSAGES = (
    Passage("p1", "Orm Tower", "Orm Tower was designed by Ada Tarn in 1871."),
    Passage("p2", "Ada Tarn", "Ada Tarn, an architect, was born in Velm."),
    Passage("p3", "Velm", "Velm is a city on the river Oss."),
)


class WordRetriever(Retriever):
    """Ranks passages by shared words; small enough to reason about."""

    def __init__(self, passages: Sequence[Passage] = PASSAGES) -> None:
        self.passages = passages
        self.calls: list[list[str]] = []

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        self.calls.append(list(queries))
        return [self._best(query, k) for query in queries]

    def _best(self, query: str, k: int) -> tuple[Passage, ...]:
        words = {word.strip("?.,").lower() for word in query.split()}

        def overlap(passage: Passage) -> int:
            text = f"{passage.title} {passage.text}".lower().replace(".", "").replace(",", "")
            return len(words & set(text.split()))

        return tuple(sorted(self.passages, key=overlap, reverse=True)[:k])


@pytest.fixture
def question() -> Question:
    return QUESTION


@pytest.fixture
def retriever() -> WordRetriever:
    return WordRetriever()


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models are fastest on one thread, and tests may share the machine."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_kernels() -> Iterator[None]:
    """Where a processor lacks bf16, a single product in bf16 makes torch give up faster kernels for good."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].backends.mkldnn.set_flags(True)
