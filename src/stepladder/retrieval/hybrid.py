"""Hybrid retrieval: fuse the results of several retrievers, by ranks or by scores.

In: retrievers of any kind over the same corpus. Out: one `Retriever`.

ranks    reciprocal rank fusion: a passage's score is the sum of 1 / (60 + rank). Needs no scores, so it works with any
         retriever
scores   weighted sum of each retriever's scores after min-max normalization per query. Keeps score margins; better than
         ranks on the train questions of three data sets (`python benchmarks/retrieval_quality.py --tune`)
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from stepladder.core.config import Config
from stepladder.core.display import shortened
from stepladder.core.errors import StepladderError
from stepladder.core.questions.excerpts import words_of
from stepladder.core.trace import Passage
from stepladder.retrieval.base import Retriever, check_search

#: The constant of reciprocal rank fusion. Larger values favor agreement over top ranks.
RANK_CONSTANT = 60
#: Candidates per retriever; at least k.
DEPTH = 100

Fusion = Literal["ranks", "scores"]
Weights = tuple[Annotated[float, Field(ge=0)], ...]


class FusionConfig(Config):
    """How the results of several retrievers are joined; None is the default of what joins them."""

    #: ranks or scores.
    fusion: Fusion | None = None
    #: One weight per retriever, in their order.
    weights: Weights | None = None
    #: The constant of rank fusion.
    rank_constant: int | None = Field(default=None, ge=0)

    def refuse(self, location: str) -> None:
        """Raise if something is set: the location is a single index, whose results are not joined with others."""
        given = {"fusion": self.fusion, "weights": self.weights, "rank_constant": self.rank_constant}
        if names := [name for name, value in given.items() if value is not None]:
            raise StepladderError(
                f"{' and '.join(names)} need several indexes (INDEX+INDEX), or one of several kinds (bm25+hnsw); "
                f"{location} is a single one"
            )

    def fuse(
        self, retrievers: Sequence[Retriever], fusion: Fusion, weights: tuple[float, ...] | None = None
    ) -> "HybridRetriever":
        """The retrievers as one. `fusion` and `weights` are the defaults; default weights are for default fusion."""
        chosen = self.fusion or fusion
        weights = self.weights or (weights if chosen == fusion else None)
        if weights is not None and (len(weights) != len(retrievers) or not any(weights)):
            raise StepladderError(
                f"found the weights {', '.join(map(str, weights))} for {len(retrievers)} indexes; expected one for "
                "each, not all of them 0"
            )
        constant = RANK_CONSTANT if self.rank_constant is None else self.rank_constant
        return HybridRetriever(retrievers, fusion=chosen, weights=weights, constant=constant)


class HybridRetriever(Retriever):
    """Fuses the results of several retrievers. Ties are broken in the order of the retrievers."""

    def __init__(
        self,
        retrievers: Sequence[Retriever],
        *,
        fusion: Fusion = "ranks",
        weights: Sequence[float] | None = None,
        depth: int = DEPTH,
        constant: int = RANK_CONSTANT,
    ) -> None:
        """`weights`: one per retriever, equal by default. `depth`: candidates each. `constant`: for rank fusion."""
        weights = tuple(weights) if weights is not None else (1.0,) * len(retrievers)
        if not retrievers:
            raise ValueError("expected at least one retriever to fuse")
        if fusion not in ("ranks", "scores"):
            raise ValueError(f"fusion must be 'ranks' or 'scores', not {fusion!r}")
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
        """For each query, in order, up to k passages with their fused scores, best first."""
        check_search(queries, k)
        if not queries:
            return []
        found = zip(*(each.search(queries, max(self.depth, k)) for each in self.retrievers), strict=True)
        if self.fusion == "ranks":
            return [fuse_by_ranks(rankings, k, self.weights, self.constant) for rankings in found]
        return [fuse_by_scores(rankings, k, self.weights) for rankings in found]

    def close(self) -> None:
        """Close all retrievers, even if one fails."""
        with ExitStack() as stack:
            for each in self.retrievers:
                stack.callback(each.close)


def fuse_by_ranks(
    rankings: Sequence[Sequence[Passage]],
    k: int,
    weights: Sequence[float] | None = None,
    constant: int = RANK_CONSTANT,
) -> tuple[Passage, ...]:
    """The k passages with the largest sums of weight / (constant + rank), with ranks from 1.

    >>> a, b, c = (Passage(id, "", id) for id in "abc")
    >>> [passage.id for passage in fuse_by_ranks([[a, b], [b, c]], k=2)]
    ['b', 'a']
    """
    shares = [[1 / (constant + rank) for rank in range(1, len(ranking) + 1)] for ranking in rankings]
    return _best(rankings, shares, weights, k)


def fuse_by_scores(
    rankings: Sequence[Sequence[Passage]], k: int, weights: Sequence[float] | None = None
) -> tuple[Passage, ...]:
    """The k passages with the largest weighted sums of scores, min-max normalized per ranking.

    >>> a, b, c = (Passage(id, "", id) for id in "abc")
    >>> first = [replace(a, score=9.0), replace(b, score=8.0), replace(c, score=1.0)]
    >>> [passage.id for passage in fuse_by_scores([first, [replace(b, score=0.5)]], k=2)]
    ['b', 'a']
    """
    return _best(rankings, [_min_max(ranking) for ranking in rankings], weights, k)


def _min_max(ranking: Sequence[Passage]) -> list[float]:
    scores = [passage.score for passage in ranking if passage.score is not None]
    if len(scores) < len(ranking):
        raise StepladderError("a retriever returns no scores, so they cannot be fused: fuse by ranks")
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
            if passages.setdefault(passage.id, passage).text != passage.text:
                _check_same(passages[passage.id], passage)
    best = sorted(sums, key=lambda each: -sums[each])[:k]  # stable: ties keep insertion order
    return tuple(replace(passages[each], score=sums[each]) for each in best)


def _check_same(one: Passage, other: Passage) -> None:
    """Raise if two passages with one id are different ones. Their texts may be cut or formatted differently."""
    ours, theirs = ({*words_of(f"{each.title} {each.text}")} for each in (one, other))
    if 2 * len(ours & theirs) < min(len(ours), len(theirs)):
        raise StepladderError(
            f"the indexes have different passages with the id {one.id!r}: {shortened(one.text)} and "
            f"{shortened(other.text)}. Passages with one id are fused, so build the indexes from one corpus, or from "
            "corpora whose ids differ"
        )
