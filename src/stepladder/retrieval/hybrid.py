"""Several retrievers as one: reciprocal rank fusion.

In: retrievers of any kind over the same corpus. Out: one `Retriever`. Every retriever gives a passage 1 / (60 + rank),
and the sums decide. Ranks can be added where scores cannot: those of BM25 and of an encoder have nothing in common.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from stepladder.retrieval.base import Retriever, check_search
from stepladder.trace import Passage

#: How much less the first rank counts than it might: the larger, the more agreement counts and the less a first place.
RANK_CONSTANT = 60
#: Most passages of each retriever that are looked at, unless more are asked for.
DEPTH = 100


class HybridRetriever(Retriever):
    """Fuses what several retrievers find. Equal sums are ordered as the first retrievers order them."""

    def __init__(self, retrievers: Sequence[Retriever], *, depth: int = DEPTH, constant: int = RANK_CONSTANT) -> None:
        """`depth`: how many passages of each retriever are looked at; a passage that none has among these is none of
        the results.
        """
        if not retrievers:
            raise ValueError("there is nothing to fuse: give at least one retriever")
        if depth < 1 or constant < 0:
            raise ValueError(f"expected depth >= 1 and constant >= 0; found {depth=}, {constant=}")
        self.retrievers = tuple(retrievers)
        self.depth, self.constant = depth, constant
        self.max_batch = min(each.max_batch for each in retrievers)
        self.concurrency = min(each.concurrency for each in retrievers)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with the sums of their reciprocal ranks, best first."""
        check_search(queries, k)
        if not queries:
            return []
        found = [each.search(queries, max(self.depth, k)) for each in self.retrievers]
        return [fused(rankings, k, self.constant) for rankings in zip(*found, strict=True)]

    def close(self) -> None:
        """Close all of them, also if one fails."""
        with ExitStack() as stack:
            for each in self.retrievers:
                stack.callback(each.close)


def fused(rankings: Sequence[Sequence[Passage]], k: int, constant: int = RANK_CONSTANT) -> tuple[Passage, ...]:
    """The k passages with the largest sums of 1 / (constant + rank), ranks counted from 1.

    >>> a, b, c = (Passage(id, "", id) for id in "abc")
    >>> [passage.id for passage in fused([[a, b], [b, c]], k=2)]
    ['b', 'a']
    """
    sums: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, start=1):
            sums[passage.id] = sums.get(passage.id, 0.0) + 1 / (constant + rank)
            passages.setdefault(passage.id, passage)
    best = sorted(sums, key=lambda each: -sums[each])[:k]  # stable: equal sums stay in the order of coming
    return tuple(replace(passages[each], score=sums[each]) for each in best)
