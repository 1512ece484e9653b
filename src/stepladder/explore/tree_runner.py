"""Exploration: grow search trees for many questions at once and write each to disk when it is finished.

In: a driver, questions, a tree search, a file. Out: the file with one tree per question, and an `ExploreResult`. Trees
that are already in the file are kept, so a killed run resumes. A tree depends on its question and the seed alone, so a
resumed run makes the same trees.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, TraceError, Tree
from stepladder.driver import Counts, Driver, OutcomeCallback
from stepladder.explore.tree_store import TreeFile


@dataclass(frozen=True, slots=True)
class ExploreResult:
    """How many trees were made, and why others failed."""

    #: Trees made by this run, and trees found in the file.
    made: int
    known: int
    #: Questions without a tree, by reason.
    failures: Counter[str]


#: The tree search: makes the algorithm for a question and a seed.
Grow = Callable[[Question, int], Algorithm[Tree]]


def explore(
    driver: Driver,
    questions: Sequence[Question],
    grow: Grow,
    path: Path,
    *,
    seed: int,
    watch: OutcomeCallback | None = None,
) -> ExploreResult:
    """Grow the trees that are not yet in the file."""
    repeated = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
    if repeated:
        raise StepladderError(
            f"question ids must be unique: {len(repeated):,} ids occur more than once, such as {repeated[0]!r}"
        )

    def job(question: Question) -> Callable[[], Algorithm[Tree]]:
        return lambda: grow(question, seed_of(seed, question.id))

    failures: Counter[str] = Counter()
    with TreeFile(path) as trees:
        missing = [question for question in questions if question.id not in trees.ids]
        for outcome in driver.stream(job(question) for question in missing):
            try:
                if outcome.failure is not None:
                    failures[outcome.failure.reason] += 1
                elif outcome.value is not None:
                    trees.add(outcome.value)
            except TraceError as error:  # this tree cannot be written, the others can
                failures[str(error)] += 1
            if watch is not None:
                watch(outcome)
    return ExploreResult(len(missing) - failures.total(), len(questions) - len(missing), failures)


class ThroughputNote:
    """The throughput and cache hit rate of a driver, as the note of a progress bar."""

    def __init__(self, counts: Counts, cost: Callable[[], str] | None = None) -> None:
        """`cost`: a further note, such as the cost of a judge."""
        self.counts = counts
        self.cost = cost
        self.started = time.monotonic()

    def __call__(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        cost = self.cost() if self.cost is not None else ""
        note = f"{self.counts.usage.written / seconds:,.0f} tokens/s, {self.shared:.0%} from cache"
        return f"{note}, {cost}" if cost else note

    @property
    def shared(self) -> float:
        """The share of requests answered without a call: cached, or equal to one in flight."""
        return (self.counts.answered_by_cache + self.counts.merged) / max(self.counts.asked.total(), 1)
