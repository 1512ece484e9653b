"""The retriever interface: queries in, passages out, best first. `check_retriever` is its public contract test."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from stepladder.core.errors import ContractViolation, expect
from stepladder.core.trace import Passage

#: Reports the progress of a long job: (phase, items done, total items; 0 if unknown).
ProgressCallback = Callable[[str, int, int], None]


def no_progress(phase: str, done: int, total: int) -> None:
    """A `ProgressCallback` that does nothing."""


class Retriever(ABC):
    """Searches a corpus."""

    #: Maximum queries per call.
    max_batch: int = 256
    #: Maximum concurrent calls.
    concurrency: int = 1

    @abstractmethod
    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages with their scores, best first.

        Fewer than k (or none) if nothing else matches: a passage without any match is not a result.
        """

    def close(self) -> None:  # noqa: B027
        """Release all resources."""


def check_search(queries: Sequence[str], k: int) -> None:
    """Reject k < 1, and a single string instead of a list of queries."""
    if isinstance(queries, str):
        raise TypeError(f"search takes a list of queries: search([{queries!r}], {k})")
    if k < 1:
        raise ValueError(f"k is the number of passages to find and must be at least 1, not {k}")


# --- the public contract test ---------------------------------------------------------------------------------

_ODD_QUERIES = (
    "",
    "   \n\t",
    "the of and is",
    "?! ... -- ()",
    "a" * 10_000,
    "tower " * 3_000,
    "xqzzyv vvkqxj",
    "\N{SLIGHTLY SMILING FACE} \N{ROCKET}",
    "\N{CJK UNIFIED IDEOGRAPH-5854}",
    "null \0 byte",
)


def check_retriever(retriever: Retriever, queries: Sequence[str], *, tolerance: float = 1e-4) -> None:
    """Test a retriever against its contract; raises `ContractViolation` on failure.

    Run it on your own retriever in your own tests, with a few `queries` that have results in your corpus, at least one
    of them two or more. `tolerance` is the relative difference allowed between equal scores.
    """
    expect(retriever.search([], 5) == [], "an empty batch must give an empty list")

    together = retriever.search(queries, 5)
    _check_results(queries, together, 5)
    expect(all(together), "each of the test queries must have a result")
    expect(max(map(len, together)) > 1, "one of the test queries must have several results")
    _expect_same(queries, together, retriever.search(queries, 5), "changes between calls", tolerance)

    alone = [retriever.search([query], 5)[0] for query in queries]
    _expect_same(queries, together, alone, "depends on its batch", tolerance)
    firsts = retriever.search(queries, 1)
    _check_results(queries, firsts, 1)
    _expect_same(queries, [found[:1] for found in together], firsts, "depends on k", tolerance)
    if retriever.concurrency > 1:
        with ThreadPoolExecutor(retriever.concurrency) as pool:
            for found in pool.map(lambda _: retriever.search(queries, 5), range(4 * retriever.concurrency)):
                _expect_same(queries, together, found, "depends on concurrent calls", tolerance)

    for query in _ODD_QUERIES:
        try:
            found = retriever.search([query], 5)
        except Exception as error:
            raise ContractViolation(f"the query {_preview(query)} raised {error!r}") from error
        _check_results([query], found, 5)

    for k in (0, -1):
        try:
            retriever.search([queries[0]], k)
        except ValueError:
            continue
        raise ContractViolation(f"k={k} must raise a ValueError")


def _check_results(queries: Sequence[str], results: list[tuple[Passage, ...]], k: int) -> None:
    expect(len(results) == len(queries), f"{len(queries)} queries gave {len(results)} results")
    for query, found in zip(queries, results):
        about = f"the result for {_preview(query)}"
        expect(isinstance(found, tuple), f"{about} is a {type(found).__name__}, not a tuple")
        expect(len(found) <= k, f"{about} has {len(found)} passages, more than k={k}")
        scores = [passage.score for passage in found if passage.score is not None]
        expect(len(scores) == len(found) and all(map(math.isfinite, scores)), f"{about} lacks finite scores")
        expect(scores == sorted(scores, reverse=True), f"{about} is not ordered by score: {scores}")
        ids = [passage.id for passage in found]
        expect(len(set(ids)) == len(ids), f"{about} has a passage twice: {ids}")


def _expect_same(
    queries: Sequence[str],
    expected: list[tuple[Passage, ...]],
    results: list[tuple[Passage, ...]],
    problem: str,
    tolerance: float,
) -> None:
    for query, one, other in zip(queries, expected, results):
        same = [passage.id for passage in one] == [passage.id for passage in other] and all(
            math.isclose(ours.score or 0, theirs.score or 0, rel_tol=tolerance, abs_tol=tolerance)
            for ours, theirs in zip(one, other)
        )
        expect(same, f"the result for {_preview(query)} {problem}: {one} and {other}")


def _preview(query: str) -> str:
    return repr(query if len(query) <= 60 else query[:57] + "...")
