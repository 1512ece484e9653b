"""Several retrievers as one: what they find is fused, by ranks or by scores.

In: retrievers of any kind over the same corpus. Out: one `Retriever`.

ranks    reciprocal rank fusion: every retriever gives a passage 1 / (60 + rank), and the sums decide. It needs no
         scores, and so goes with any retriever
scores   every retriever's scores of a query are stretched to 0 to 1, and the weighted sums decide. A clear winner stays
         ahead of a narrow one; it found more than ranks did on the train questions of three data sets
         (`python benchmarks/retrieval_quality.py --tune`)
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.retrieval.base import Retriever, check_search

#: How much less the first rank counts than it might: the larger, the more agreement counts and the less a first place.
RANK_CONSTANT = 60
#: Most passages of each retriever that are looked at, unless more are asked for.
DEPTH = 100

Fusion = Literal["ranks", "scores"]


class HybridRetriever(Retriever):
    """Fuses what several retrievers find. Equal sums are ordered as the first retrievers order them."""

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        *,
        fusion: Fusion = "ranks",
        weights: Sequence[float] | None = None,
        depth: int = DEPTH,
        constant: int = RANK_CONSTANT,
    ) -> None:
        """`weights`: how much each retriever counts; all the same if left out. `depth`: how many passages of each are
        looked at; a passage that none has among these is none of the results. `constant` is of the fusion by ranks.
        """
        weights = tuple(weights) if weights is not None else (1.0,) * len(retrievers)
        if not retrievers:
            raise ValueError("there is nothing to fuse: give at least one retriever")
        if fusion not in ("ranks", "scores"):
            raise ValueError(f"fusion is 'ranks' or 'scores', not {fusion!r}")
        if depth < 1 or constant < 0 or len(weights) != len(retrievers) or min(weights) < 0 or not any(weights):
            raise ValueError(
                "expected depth >= 1, constant >= 0 and a weight >= 0 for each retriever, not all of them 0; found "
                f"{depth=}, {constant=}, {weights=} for {len(retrievers)} retrievers"
            )
        self.retrievers, self.weights = tuple(retrievers), weights
        self.fusion, self.depth, self.constant = fusion, depth, constant
        self.max_batch = min(each.max_batch for each in retrievers)
        self.concurrency = min(each.concurrency for each in retrievers)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with the sums that decided, best first."""
        check_search(queries, k)
        if not queries:
            return []
        found = [each.search(queries, max(self.depth, k)) for each in self.retrievers]
        return [self._fused(rankings, k) for rankings in zip(*found, strict=True)]

    def _fused(self, rankings: Sequence[Sequence[Passage]], k: int) -> tuple[Passage, ...]:
        if self.fusion == "ranks":
            return fuse_by_ranks(rankings, k, self.weights, self.constant)
        return fuse_by_scores(rankings, k, self.weights)

    def close(self) -> None:
        """Close all of them, also if one fails."""
        with ExitStack() as stack:
            for each in self.retrievers:
                stack.callback(each.close)


def fuse_by_ranks(
    rankings: Sequence[Sequence[Passage]],
    k: int,
    weights: Sequence[float] | None = None,
    constant: int = RANK_CONSTANT,
) -> tuple[Passage, ...]:
    """The k passages with the largest sums of weight / (constant + rank), ranks counted from 1.

    >>> a, b, c = (Passage(id, "", id) for id in "abc")
    >>> [passage.id for passage in fuse_by_ranks([[a, b], [b, c]], k=2)]
    ['b', 'a']
    """
    shares = [[1 / (constant + rank) for rank in range(1, len(ranking) + 1)] for ranking in rankings]
    return _best(rankings, shares, weights, k)


def fuse_by_scores(
    rankings: Sequence[Sequence[Passage]], k: int, weights: Sequence[float] | None = None
) -> tuple[Passage, ...]:
    """The k passages with the largest sums of weighted scores, each ranking's stretched from 0 (its last) to 1.

    >>> a, b, c = (Passage(id, "", id) for id in "abc")
    >>> first = [replace(a, score=9.0), replace(b, score=8.0), replace(c, score=1.0)]
    >>> [passage.id for passage in fuse_by_scores([first, [replace(b, score=0.5)]], k=2)]
    ['b', 'a']
    """
    return _best(rankings, [_stretched(ranking) for ranking in rankings], weights, k)


def _stretched(ranking: Sequence[Passage]) -> list[float]:
    scores = [passage.score for passage in ranking if passage.score is not None]
    if len(scores) < len(ranking):
        raise StepladderError("a retriever gives no scores, so they cannot be fused: fuse by ranks")
    low, high = min(scores, default=0.0), max(scores, default=0.0)
    return [(score - low) / (high - low) if high > low else 1.0 for score in scores]


def _best(
    rankings: Sequence[Sequence[Passage]], shares: Sequence[Sequence[float]], weights: Sequence[float] | None, k: int
) -> tuple[Passage, ...]:
    sums: dict[str, float] = {}
    passages: dict[str, Passage] = {}
    for ranking, each, weight in zip(rankings, shares, weights or [1.0] * len(rankings), strict=True):
        for passage, share in zip(ranking, each, strict=True):
            sums[passage.id] = sums.get(passage.id, 0.0) + weight * share
            passages.setdefault(passage.id, passage)
    best = sorted(sums, key=lambda each: -sums[each])[:k]  # stable: equal sums stay in the order of coming
    return tuple(replace(passages[each], score=sums[each]) for each in best)
