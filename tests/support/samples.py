"""A question with its gold decomposition, three passages, and a retriever over them."""

from collections.abc import Sequence

from stepladder.core.trace import Hop, Passage, Question
from stepladder.retrieval.base import Retriever

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
