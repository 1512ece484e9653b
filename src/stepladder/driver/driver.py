"""The driver: runs any number of algorithms together on one engine, one retriever and one step scorer.

In: jobs, each returning a generator that yields requests (`core/requests.py`). Out: one `Outcome` per job: the return
value of the generator, or the reason why it failed. Batches, threads, caches and Ctrl-C are handled here and nowhere
else:

- Requests of all running algorithms are collected into full batches; equal requests are answered once.
- An engine that takes one call at a time is called only when every cheaper request (retrieval before scoring before
  generation) has been answered. Its batches are then as full as possible, and the same on every run. A backend with
  `concurrency` above 1 is called from that many threads as requests arrive; an engine that waits for its calls in one
  thread of its own (`Engine.submit`) needs none.
- With an engine that supports continuous batching, requests join the running batch as others finish.
- A call that raises is repeated in halves, so that one bad request fails alone.
- An algorithm that raises, or whose request fails, becomes a failed outcome; the others continue.
- Jobs may arrive while others run (`Driver.stream`).
- Ctrl-C ends the run: `run` raises `Interrupted` with the outcomes so far. `BackendDown` carries them too.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from stepladder.core.errors import BackendDown
from stepladder.core.memory import cache_bytes
from stepladder.core.requests import Generate, Job, Rank, Result, Retrieve, Score
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import StopReason
from stepladder.driver.outcomes import Counts, Failure, Interrupted, Outcome, OutcomeCallback
from stepladder.driver.request_cache import RequestCache
from stepladder.driver.session import DriverSession
from stepladder.engines.base import Engine
from stepladder.retrieval.base import Retriever


class JobSession(Protocol[Result]):
    """One run of jobs."""

    #: Outcomes that were not yielded yet.
    finished: deque[Outcome[Result]]

    def outcomes(self) -> Iterator[Outcome[Result]]:
        """Outcomes, as they finish."""

    def close(self) -> None:
        """Stop everything that still runs."""


class Driver:
    """Runs algorithms on an engine, a retriever and a scorer. Only the backends that are used must be given."""

    def __init__(
        self,
        engine: Engine | None = None,
        retriever: Retriever | None = None,
        scorer: StepScorer | None = None,
        *,
        in_flight: int = 1024,
        retrieval_cache: int = 65_536,
        generation_cache: int = 0,
    ) -> None:
        """At most `in_flight` jobs are open at once; the caches hold this many searches and generations, within their
        share of the memory for caches (core/memory.py).

        Cached generations are valid only while the weights stay the same: use no cache during training.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; at least 1 job must be open")
        self.engine = engine
        self.retriever = retriever
        self.scorer = scorer
        self.in_flight = in_flight
        self.caches = {
            Retrieve: RequestCache(retrieval_cache, cache_bytes("searches")),
            Score: RequestCache(0, 0),
            Rank: RequestCache(0, 0),
            Generate: RequestCache(generation_cache, cache_bytes("generations")),
        }
        self.counts = Counts()

    def __repr__(self) -> str:
        backends = (("engine", self.engine), ("retriever", self.retriever), ("scorer", self.scorer))
        return f"Driver({', '.join(f'{name}={type(each).__name__}' for name, each in backends if each is not None)})"

    def open_session(self, jobs: Iterable[Job[Result] | None]) -> "JobSession[Result]":
        """The state of one run of jobs."""
        return DriverSession(self, jobs)

    def run(self, jobs: Iterable[Job[Result]], watch: OutcomeCallback | None = None) -> list[Outcome[Result]]:
        """Run every job; the outcomes are in the order of the jobs."""
        jobs = list(jobs)
        session = self.open_session(jobs)
        done: dict[int, Outcome[Result]] = {}

        def so_far(reason: str) -> list[Outcome[Result]]:
            done.update((outcome.index, outcome) for outcome in session.finished)
            cancelled = Failure(StopReason.CANCELLED, reason)
            return [done.get(index, Outcome(index, failure=cancelled)) for index in range(len(jobs))]

        try:
            for outcome in session.outcomes():
                done[outcome.index] = outcome
                if watch is not None:
                    watch(outcome)
        except KeyboardInterrupt:
            raise Interrupted(so_far("the run was interrupted")) from None
        except BackendDown as error:
            error.outcomes = so_far(str(error))
            raise
        finally:
            session.close()
        return [done[index] for index in range(len(jobs))]

    def stream(self, jobs: Iterable[Job[Result] | None]) -> Iterator[Outcome[Result]]:
        """Run every job and yield outcomes as they finish; nothing is kept.

        Jobs may arrive while others run, as in a server: `jobs` yields None when there is none at the moment and is
        polled again soon. It may block for the next job only if no other is running, that is when all earlier outcomes
        were yielded.
        """
        session = self.open_session(jobs)
        try:
            yield from session.outcomes()
        finally:
            session.close()
