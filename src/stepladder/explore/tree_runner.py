"""ExploreResult: grow the trees of many questions at once, and have each on disk as soon as it is done.

In: a driver, questions, a way to grow a tree, a file. Out: the file with a tree a question, and a `ExploreResult`: what
it took. Trees that are in the file already are left as they are, so a run that was killed goes on; and as a tree
depends on its question and the seed alone, it goes on to the trees it would have made.
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
    """What became of the questions, and what it took."""

    #: Trees made now, and those that were there before.
    made: int
    known: int
    #: Questions without a tree, by reason.
    failures: Counter[str]


#: Makes the algorithm that grows the tree of a question from a seed.
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
    """Grow the trees that are not in the file yet."""
    twice = [name for name, count in Counter(question.id for question in questions).items() if count > 1]
    if twice:
        raise StepladderError(f"questions need ids of their own: {len(twice):,} ids occur again, such as {twice[0]!r}")

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
            except TraceError as error:  # this one cannot be written, the others can
                failures[str(error)] += 1
            if watch is not None:
                watch(outcome)
    return ExploreResult(len(missing) - failures.total(), len(questions) - len(missing), failures)


class ThroughputNote:
    """Says how fast a driver works and how much it need not do, for a progress bar."""

    def __init__(self, counts: Counts, more: Callable[[], str] | None = None) -> None:
        """`more`: what else there is to tell, such as what a judge has cost."""
        self.counts = counts
        self.more = more
        self.started = time.monotonic()

    def __call__(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-9)
        also = f", {self.more()}" if self.more is not None else ""
        return f"{self.counts.usage.written / seconds:,.0f} tokens/s, {self.shared:.0%} from cache{also}"

    @property
    def shared(self) -> float:
        """The share of requests that were answered without asking anybody: known, or equal to one under way."""
        return (self.counts.answered_by_cache + self.counts.merged) / max(sum(self.counts.asked.values()), 1)
