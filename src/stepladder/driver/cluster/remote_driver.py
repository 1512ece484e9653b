"""A driver whose jobs are run by a pool of workers, each with a driver, an engine and a retriever of its own.

In: jobs that are `functools.partial` objects of an importable function, the agent first among its arguments. Out: the
same outcomes as of a `Driver` in one process: every request has its own seed, so a result does not depend on where it
is computed. The agent does not travel; a worker uses the one it built from the same settings.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from stepladder.agents.base import Agent
from stepladder.core.requests import Algorithm, Job, Result
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import StopReason
from stepladder.driver.cluster.pool import Lost, WorkerPool
from stepladder.driver.driver import Driver
from stepladder.driver.outcomes import Counts, Failure, Outcome
from stepladder.engines.base import Engine


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job without its agent."""

    function: Callable[..., Algorithm[Any]]
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    @classmethod
    def of(cls, job: Job[Any] | None) -> "RemoteJob":
        """The remote form of a job."""
        if not (isinstance(job, partial) and job.args and isinstance(job.args[0], Agent)):
            raise TypeError(f"a job for workers is partial(function, agent, ...); this one is {job!r}")
        return cls(job.func, job.args[1:], job.keywords)

    def job(self, agent: Agent) -> Job[Any]:
        """The job with the agent of a worker."""
        return partial(self.function, agent, *self.arguments, **self.named)


class RemoteDriver(Driver):
    """Runs jobs on a pool. `engine` and `scorer` only say which ones the workers use; they are not called."""

    def __init__(
        self, pool: WorkerPool, *, in_flight: int = 1024, engine: Engine | None = None, scorer: StepScorer | None = None
    ) -> None:
        super().__init__(engine, None, scorer, in_flight=in_flight)
        self.pool = pool

    def open_session(self, jobs: Iterable[Job[Result] | None]) -> "RemoteSession":
        """A run of these jobs on the workers. All of them are known from the start."""
        return RemoteSession(self, jobs)


class RemoteSession:
    """One run of jobs on the workers, in place of a `DriverSession`."""

    def __init__(self, driver: RemoteDriver, jobs: Iterable[Job[Any] | None]) -> None:
        self.driver = driver
        self.jobs = [RemoteJob.of(job) for job in jobs]
        self.finished: deque[Outcome[Any]] = deque()

    def outcomes(self) -> Iterator[Outcome[Any]]:
        """Outcomes, as they finish."""
        pool = self.driver.pool
        for index, found in pool.map(self.jobs, self.driver.in_flight):
            _add_up(self.driver.counts, pool.reports.values())
            if isinstance(found, Lost):
                yield Outcome(index, failure=Failure(StopReason.FAILED, found.reason))
            else:
                yield replace(found, index=index)

    def close(self) -> None:
        """Nothing to stop: the pool is closed by who opened it."""


def _add_up(total: Counts, reports: Iterable[Counts]) -> None:
    """Set the counts of a driver to those of all workers together."""
    fresh = Counts()
    for each in reports:
        fresh.asked += each.asked
        fresh.calls += each.calls
        fresh.answered_by_cache += each.answered_by_cache
        fresh.merged += each.merged
        fresh.usage += each.usage
    total.asked, total.calls, total.usage = fresh.asked, fresh.calls, fresh.usage
    total.answered_by_cache, total.merged = fresh.answered_by_cache, fresh.merged
