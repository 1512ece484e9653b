"""The contract of a retriever: queries in, passages out, best first. `check_retriever` tests it in public."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from stepladder.trace import Passage


class Retriever(ABC):
    """Something that searches a corpus."""

    #: Most queries the driver puts into one call.
    max_batch: int = 256
    #: Calls the driver may have under way at once.
    concurrency: int = 1

    @abstractmethod
    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with their scores, best first.

        Fewer than k (or none) when nothing else matches: a passage that shares nothing with a query is not a result.
        """

    def close(self) -> None:  # noqa: B027
        """Free what the retriever holds."""
