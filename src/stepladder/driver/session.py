"""One run of a driver: the state of its jobs and queues.

In: a driver and its jobs. Out: outcomes, in the order in which jobs finish.
"""

import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.io.interrupts import check_interrupt
from stepladder.core.io.masking import mask
from stepladder.core.requests import (
    Algorithm,
    AnyRequest,
    Generate,
    Generation,
    Job,
    Rank,
    Request,
    Result,
    Retrieve,
    Score,
    requests_in,
    send_replies,
)
from stepladder.core.trace import StopReason
from stepladder.driver.outcomes import Failure, Outcome
from stepladder.driver.queues import Call, PendingRequest, RequestQueue, rank, score, search
from stepladder.driver.request_cache import Key, drop_context, keys_of, restore_context
from stepladder.engines.base import EngineOutOfMemory

if TYPE_CHECKING:
    from stepladder.driver.driver import Driver

#: Seconds between two polls for new jobs while calls run in threads.
_POLL_SECONDS = 0.02
#: By kind of request: the backend's name, how it answers a batch, and what to do without it. Cheapest first: a queue
#: that takes one call at a time waits for those before it.
_BACKENDS: dict[type[Any], tuple[str, Call, str]] = {
    Retrieve: ("retriever", search, "there is no index: pass a retriever"),
    Score: ("scorer", score, "there is no step scorer: pass a scorer"),
    Rank: ("scorer", rank, "there is no step scorer: pass a scorer"),
    Generate: ("engine", lambda engine, requests: engine.generate(requests), "there is no model: pass an engine"),
}


class MissingBackend(StepladderError):
    """An algorithm made a request for which the driver has no backend."""


@dataclass(slots=True, eq=False)
class _RunningJob(Generic[Result]):
    """A job in progress: its generator, its current requests, and the replies received so far."""

    index: int
    algorithm: Algorithm[Result]
    request: AnyRequest = ()
    replies: list[Any] = field(default_factory=list)
    missing: int = 0


class DriverSession(Generic[Result]):
    """The state of one `Driver.stream`."""

    def __init__(self, driver: "Driver", jobs: Iterable[Job[Result] | None]) -> None:
        self.driver = driver
        self.jobs = iter(jobs)
        self.opened = 0
        #: `exhausted`: there are no more jobs. `arriving`: `jobs` has yielded None, so more may come at any time.
        self.exhausted = False
        self.arriving = False
        self.active: dict[int, _RunningJob[Result]] = {}
        self.finished: deque[Outcome[Result]] = deque()
        self.completed: SimpleQueue[tuple[RequestQueue, list[PendingRequest], Future[list[Any]]]] = SimpleQueue()
        self.queues = tuple(
            RequestQueue(kind, getattr(driver, name), call, driver.caches[kind])
            for kind, (name, call, _) in _BACKENDS.items()
        )
        self.queue_by_kind = {queue.kind: queue for queue in self.queues}

    def outcomes(self) -> Iterator[Outcome[Result]]:
        while True:
            check_interrupt()
            self._admit()
            if self.finished:
                yield self.finished.popleft()
            elif self.active:
                self._work()
            elif self.exhausted:
                return

    def close(self) -> None:
        """Stop everything that still runs: at the end, on Ctrl-C, and when the consumer stops iterating."""
        if any(queue.calls for queue in self.queues) and self.driver.engine is not None:
            with suppress(Exception):  # must not hide the exception that ended the run
                self.driver.engine.cancel()
        for queue in self.queues:
            if queue.pool is not None:
                queue.pool.shutdown(wait=False, cancel_futures=True)
        for job in self.active.values():
            _close(job)

    def _admit(self) -> None:
        """Open jobs up to the limit, but none while there are outcomes to yield."""
        while len(self.active) < self.driver.in_flight and not self.finished:
            try:
                job = next(self.jobs)
            except StopIteration:
                self.exhausted = True
                return
            if job is None:
                self.arriving = True
                return
            index, self.opened = self.opened, self.opened + 1
            try:
                running = _RunningJob(index, _algorithm(job))
            except Exception as error:  # noqa: BLE001 - recorded as a failure; the other jobs continue
                self.finished.append(Outcome(index, failure=_failure(error)))
                continue
            self.active[index] = running
            self._advance(running, partial(next, running.algorithm))

    def _work(self) -> None:
        """Start the calls that can start, then take in replies; while jobs may arrive, wait only briefly."""
        for queue in self.queues:
            while queue.pool is not None and queue.waiting and queue.calls < queue.concurrency:
                self._start(queue, queue.take_batch())
        for queue in self.queues:
            if queue.pool is None and (queue.waiting or queue.running):
                if queue.open_session() is not None:
                    self._continue_session(queue)
                else:
                    self._call(queue, queue.take_batch())
                return
            if queue.calls or queue.waiting:  # the next queues are more expensive
                break
        try:
            queue, batch, done = self.completed.get(timeout=_POLL_SECONDS if self.arriving else None)
        except Empty:
            return
        queue.calls -= 1
        self._deliver(queue, batch, queue.replies(batch, done))

    def _call(self, queue: RequestQueue, batch: list[PendingRequest]) -> None:
        self.driver.counts.calls[queue.kind.__name__] += 1
        self._deliver(queue, batch, queue.answer(batch))

    def _continue_session(self, queue: RequestQueue) -> None:
        """Add requests to the running batch and generate until some of them finish."""
        session = queue.session
        assert session is not None
        try:
            if joining := queue.take_joining():
                self.driver.counts.calls[queue.kind.__name__] += 1
                session.add({pending.key: pending.request for pending in joining})  # type: ignore[misc] # all Generate
            replies = session.step()
        except BackendDown:
            raise
        except EngineOutOfMemory:
            queue.reduce_batch()
            if self.driver.engine is not None:
                self.driver.engine.max_batch = queue.max_batch  # also for later runs
            queue.session = None
        except Exception:  # noqa: BLE001 - the plain call below finds the failing request by halving
            queue.session = None
        else:
            self._deliver(queue, [queue.running[key] for key in replies], list(replies.values()))  # type: ignore[index]
            return
        # Outside of the handler, so that the memory held by the session is released.
        del session
        self._call(queue, list(queue.running.values()))

    def _start(self, queue: RequestQueue, batch: list[PendingRequest]) -> None:
        """Begin a call; its replies arrive through `completed`."""
        self.driver.counts.calls[queue.kind.__name__] += 1
        queue.calls += 1
        queue.start(batch).add_done_callback(lambda done: self.completed.put((queue, batch, done)))

    def _deliver(self, queue: RequestQueue, batch: list[PendingRequest], replies: Sequence[Any]) -> None:
        """Hand replies to the waiting jobs and advance those that have all of theirs."""
        for pending, reply in zip(batch, replies):
            del queue.running[pending.key]
            if not isinstance(reply, Exception):
                queue.cache.put(pending.key, pending.request, reply)
            if isinstance(reply, Generation):
                self.driver.counts.usage += reply.usage
            for job, slot, request in pending.waiters:
                same = request is pending.request
                job.replies[slot] = reply if same else restore_context(drop_context(reply, pending.request), request)
                job.missing -= 1
                if job.missing == 0:
                    self._advance(job, partial(send_replies, job.algorithm, job.request, job.replies))

    def _advance(self, job: _RunningJob[Result], resume: Callable[[], AnyRequest]) -> None:
        """Resume one algorithm until it waits for a reply that is not cached, or ends."""
        while True:
            try:
                job.request = resume()
                asked = requests_in(job.request)
                queues = [self._queue_of(request) for request in asked]
                requests = list(zip(asked, queues, keys_of(asked)))
            except StopIteration as end:
                outcome: Outcome[Result] = Outcome(job.index, value=end.value)
                break
            except (BackendDown, MissingBackend):
                raise
            except Exception as error:  # noqa: BLE001 - recorded as a failure; the other jobs continue
                outcome = Outcome(job.index, failure=_failure(error))
                _close(job)
                break
            self._enqueue(job, requests)
            if job.missing:
                return
            resume = partial(send_replies, job.algorithm, job.request, job.replies)
        self.finished.append(outcome)
        del self.active[job.index]

    def _queue_of(self, request: object) -> RequestQueue:
        queue = self.queue_by_kind.get(type(request))
        if queue is None:
            raise TypeError(f"an algorithm yielded {request!r}; it may yield Generate, Retrieve and Score requests")
        if queue.backend is None:
            advice = _BACKENDS[queue.kind][2]
            raise MissingBackend(f"an algorithm asked to {queue.kind.__name__.lower()}, but {advice}")
        return queue

    def _enqueue(self, job: _RunningJob[Result], requests: list[tuple[Request, RequestQueue, Key]]) -> None:
        counts = self.driver.counts
        job.replies = [None] * len(requests)
        job.missing = 0
        for slot, (request, queue, key) in enumerate(requests):
            counts.asked[queue.kind.__name__] += 1
            cached = queue.cache.get(key, request)
            if cached is not None:
                counts.answered_by_cache += 1
                job.replies[slot] = cached
                continue
            job.missing += 1
            pending = queue.running.get(key) or queue.waiting.get(key)
            if pending is None:
                pending = queue.add(key, request, job.index)
            else:
                queue.join(pending, job.index)
                counts.merged += 1
            pending.waiters.append((job, slot, request))


def _algorithm(job: Job[Result]) -> Algorithm[Result]:
    algorithm = job()
    if not isinstance(algorithm, Generator):
        raise TypeError(f"a job must return a generator; this one returned {algorithm!r}")
    return algorithm


def _failure(error: Exception) -> Failure:
    try:
        reason = str(error) if isinstance(error, StepladderError) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception whose text cannot be formatted
        reason = type(error).__name__
    return Failure(StopReason.FAILED, mask(reason), mask("".join(traceback.format_exception(error))))


def _close(job: _RunningJob[Any]) -> None:
    """Close a generator. Exceptions raised while closing change neither its outcome nor the run."""
    with suppress(Exception):
        job.algorithm.close()
