"""Results of driver jobs: an `Outcome` per job, the counts of a driver, and the interruption of a run."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

from stepladder.core.requests import Result
from stepladder.core.trace import StopReason, Usage
from stepladder.core.unicode import repair


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job has no result."""

    stop: StopReason
    reason: str
    traceback: str = ""

    def __post_init__(self) -> None:
        repair(self, "reason", "traceback")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """The result of one job: a value or a failure. `index` is the position of the job."""

    index: int
    value: Result | None = None
    failure: Failure | None = None


#: Called with every outcome, for example by a progress bar.
OutcomeCallback = Callable[[Outcome[Any]], None]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `Driver.run`. `outcomes` has one entry per job; unfinished jobs are failures (`cancelled`)."""

    def __init__(self, outcomes: list[Outcome[Any]]) -> None:
        super().__init__("interrupted")
        self.outcomes = outcomes


@dataclass(slots=True)
class Counts:
    """Requests and calls of a driver, by kind of request."""

    asked: Counter[str] = field(default_factory=Counter)
    #: Requests answered from the cache, and requests that shared the reply of an equal pending one.
    answered_by_cache: int = 0
    merged: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    #: Tokens read and written by the engine, without requests answered from the cache.
    usage: Usage = Usage()

    @property
    def shared(self) -> float:
        """The share of requests answered without a call: cached, or equal to one in flight."""
        return (self.answered_by_cache + self.merged) / max(self.asked.total(), 1)
