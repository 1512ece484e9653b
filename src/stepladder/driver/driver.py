"""The one place that does the work: runs any number of algorithms together on one engine and one index.

In: jobs, each making a generator that yields requests (see request.py). Out: an `Outcome` a job: what the generator
returned, or why it failed. The driver alone knows about batches, threads, caches and Ctrl-C:

- Requests of all running algorithms are gathered into full batches; equal requests are answered once.
- An engine that takes one call at a time is called only when every cheaper request (search before scoring before
  generation) has been answered. Its batches are then as full as they can be, and the same on every run. An engine or
  retriever with `concurrency` above 1 is called from that many threads, as requests come in.
- Where the engine allows it, requests join those under way as others are answered: nobody waits for the longest.
- A call that raises is made again in halves, so that one bad request fails alone.
- An algorithm that raises, or whose request fails, becomes a failed outcome; the others go on.
- Jobs may arrive while others run (`Driver.stream`): they join them.
- Ctrl-C ends the run: `run` raises `Interrupted` with the outcomes so far. So does `BackendDown`, which has them too.
"""

import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.requests import (
    Algorithm,
    AnyRequest,
    Generate,
    Generation,
    Job,
    Request,
    Result,
    Retrieve,
    Score,
    requests_in,
    send_replies,
)
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import StopReason, Usage
from stepladder.driver.queues import Cache, Key, PendingRequest, RequestQueue, key_of, lane_for, score_call, search_call
from stepladder.engines.base import Engine, EngineOutOfMemory
from stepladder.retrieval.base import Retriever

#: Where calls are made from threads, whoever may send more jobs is asked for them so many seconds apart.
_LOOK_AGAIN = 0.02


class Watcher(Protocol):
    """Is told about every outcome, as a progress bar is."""

    def __call__(self, outcome: "Outcome[Any]") -> None: ...


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a job has no result."""

    stop: StopReason
    reason: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Result]):
    """What became of one job: a value or a failure. `index` is its place among the jobs."""

    index: int
    value: Result | None = None
    failure: Failure | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `Driver.run`. `outcomes` has one entry a job; unfinished ones are failures, `cancelled`."""

    def __init__(self, outcomes: list[Outcome[Any]]) -> None:
        super().__init__("interrupted")
        self.outcomes = outcomes


@dataclass(slots=True)
class Counts:
    """What the driver did, by kind of request."""

    asked: dict[str, int] = field(default_factory=dict)
    #: Requests answered by what is remembered, and those that shared the reply to an equal one under way.
    answered_by_cache: int = 0
    merged: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    #: Tokens that the engine read and wrote. What was answered without it is not in here.
    usage: Usage = Usage()


class Driver:
    """Runs algorithms on an engine, a retriever and a scorer; whichever of them the algorithms ask for."""

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
        """`in_flight` jobs are open at once; the caches say how many searches and generations are remembered.

        Generations hold as long as the model stays the same: remember none while it learns.
        """
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; at least 1 job must be open")
        self.engine = engine
        self.retriever = retriever
        self.scorer = scorer
        self.in_flight = in_flight
        self.caches = {Retrieve: Cache(retrieval_cache), Score: Cache(0), Generate: Cache(generation_cache)}
        self.counts = Counts()

    def run(self, jobs: Iterable[Job[Result]], watch: Watcher | None = None) -> list[Outcome[Result]]:
        """Run every job; the outcomes come in the order of the jobs."""
        jobs = list(jobs)
        session: _Session[Result] = _Session(self, jobs)
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
        """Run every job; outcomes come as they are finished, and nothing of them is kept here.

        Jobs may arrive while others run, as those of a server do: None says that there is none at this moment, counts
        as no job, and `jobs` are asked again soon. They may wait for the next job themselves when no other is under
        way, that is when the outcomes of all before it were handed over; at other times that would hold those up.
        """
        session: _Session[Result] = _Session(self, jobs)
        try:
            yield from session.outcomes()
        finally:
            session.close()


class _Run(Generic[Result]):
    """A job under way: its generator, what it asked for, and the replies it is waiting for."""

    __slots__ = ("algorithm", "asking", "index", "missing", "replies")

    def __init__(self, index: int, algorithm: Algorithm[Result]) -> None:
        self.index = index
        self.algorithm = algorithm
        self.asking: AnyRequest = ()
        self.replies: list[Any] = []
        self.missing = 0


class _Session(Generic[Result]):
    """The state of one `Driver.stream`."""

    def __init__(self, driver: Driver, jobs: Iterable[Job[Result] | None]) -> None:
        self.driver = driver
        self.jobs = iter(jobs)
        self.opened = 0
        #: Whether there are no more jobs; whether there was a moment without one, so that more may come at any time.
        self.exhausted = False
        self.arriving = False
        self.active: dict[int, _Run[Result]] = {}
        self.finished: deque[Outcome[Result]] = deque()
        self.completed: SimpleQueue[tuple[RequestQueue, list[PendingRequest], Any]] = SimpleQueue()
        retriever, scorer, engine = driver.retriever, driver.scorer, driver.engine
        generate = getattr(engine, "generate", None)
        # Cheapest first: a lane that takes one call at a time waits for those before it.
        self.lanes = tuple(
            lane_for(kind, call, backend, advice, driver.caches[kind])
            for kind, call, backend, advice in (
                (Retrieve, search_call(retriever), retriever, "there is no index to search: pass a retriever"),
                (Score, score_call(scorer), scorer, "there is no reward model: pass a scorer"),
                (Generate, generate, engine, "there is no model: pass an engine"),
            )
        )

    def outcomes(self) -> Iterator[Outcome[Result]]:
        while True:
            self._admit()
            if self.finished:
                yield self.finished.popleft()
            elif self.active:
                self._work()
            elif self.exhausted:
                return

    def close(self) -> None:
        """Stop what is still running; called at the end, on Ctrl-C and when the consumer goes away."""
        if any(lane.calls for lane in self.lanes) and self.driver.engine is not None:
            with suppress(Exception):  # whatever ended the run is the news, not this
                self.driver.engine.cancel()
        for lane in self.lanes:
            if lane.pool is not None:
                lane.pool.shutdown(wait=False, cancel_futures=True)
        for run in self.active.values():
            _close(run)

    def _admit(self) -> None:
        """Open jobs up to the limit, but none while there are outcomes to hand over."""
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
                run = _Run(index, _algorithm(job))
            except Exception as error:  # noqa: BLE001 - recorded with its reason; the others go on
                self.finished.append(Outcome(index, failure=_failure(error)))
                continue
            self.active[index] = run
            self._advance(run, lambda run=run: next(run.algorithm))  # type: ignore[misc]

    def _work(self) -> None:
        """Start what can start, then take in a set of replies; where jobs may arrive, do not wait for it for long."""
        for lane in self.lanes:
            while lane.pool is not None and lane.waiting and lane.calls < lane.concurrency:
                self._start(lane, lane.take_batch())
        for lane in self.lanes:
            if lane.pool is None and (lane.waiting or lane.running) and not self._busy_before(lane):
                lane.session = lane.session or lane.open_session()
                if lane.session is not None:
                    self._go_on(lane)
                else:
                    self._call(lane, lane.take_batch())
                return
        try:
            lane, batch, replies = self.completed.get(timeout=_LOOK_AGAIN if self.arriving else None)
        except Empty:
            return
        lane.calls -= 1
        if isinstance(replies, BaseException):
            raise replies
        self._deliver(lane, batch, replies)

    def _call(self, lane: RequestQueue, batch: list[PendingRequest]) -> None:
        self._count_call(lane)
        self._deliver(lane, batch, lane.answer(batch))

    def _go_on(self, lane: RequestQueue) -> None:
        """Let requests join those under way, and work until some are answered."""
        session = lane.session
        assert session is not None
        try:
            if joining := lane.take_joining():
                self._count_call(lane)
                session.add({asked.key: asked.request for asked in joining})  # type: ignore[misc] # a lane of Generate
            replies = session.step()
        except BackendDown:
            raise
        except EngineOutOfMemory:
            lane.narrow()
            if self.driver.engine is not None:
                self.driver.engine.max_batch = lane.max_batch  # for those who come after us too
            lane.session = None
        except Exception:  # noqa: BLE001 - found out by the ordinary way, which asks again in halves
            lane.session = None
        else:
            self._deliver(lane, [lane.running[key] for key in replies], list(replies.values()))  # type: ignore[index]
            return
        # Outside of the handler, so that what the session held (GPU memory) is free again.
        del session
        self._call(lane, list(lane.running.values()))

    def _busy_before(self, lane: RequestQueue) -> bool:
        cheaper = self.lanes[: self.lanes.index(lane)]
        return any(other.calls or other.waiting for other in cheaper)

    def _start(self, lane: RequestQueue, batch: list[PendingRequest]) -> None:
        """Call from a thread; the replies come back through `completed`."""
        assert lane.pool is not None
        self._count_call(lane)
        lane.calls += 1

        def work() -> None:
            try:
                replies: Any = lane.answer(batch)
            except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
                replies = error
            self.completed.put((lane, batch, replies))

        lane.pool.submit(work)

    def _count_call(self, lane: RequestQueue) -> None:
        calls = self.driver.counts.calls
        calls[lane.kind.__name__] = calls.get(lane.kind.__name__, 0) + 1

    def _deliver(self, lane: RequestQueue, batch: list[PendingRequest], replies: Sequence[Any]) -> None:
        """Hand replies to those who wait, and let them go on."""
        for asked, reply in zip(batch, replies):
            del lane.running[asked.key]
            if not isinstance(reply, Exception):
                lane.cache.put(asked.key, asked.request, reply)
            if isinstance(reply, Generation):
                self.driver.counts.usage += reply.usage
            for run, slot, request in asked.waiters:
                run.replies[slot] = asked.reply_for(request, reply)
                run.missing -= 1
                if run.missing == 0:
                    self._advance(run, partial(send_replies, run.algorithm, run.asking, run.replies))

    def _advance(self, run: _Run[Result], go_on: Callable[[], AnyRequest]) -> None:
        """Let one algorithm go on until it waits for a reply that is not at hand, or is done."""
        while True:
            try:
                run.asking = go_on()
                asked_for = [(request, self._lane_for(request), key_of(request)) for request in requests_in(run.asking)]
            except StopIteration as end:
                self._finish(run, Outcome(run.index, value=end.value))
                return
            except (BackendDown, MissingBackend):
                raise
            except Exception as error:  # noqa: BLE001 - recorded with its reason; the others go on
                failure = _failure(error)
                _close(run)
                self._finish(run, Outcome(run.index, failure=failure))
                return
            self._ask(run, asked_for)
            if run.missing:
                return
            go_on = partial(send_replies, run.algorithm, run.asking, run.replies)

    def _lane_for(self, request: object) -> RequestQueue:
        for lane in self.lanes:
            if isinstance(request, lane.kind):
                if lane.call is None:
                    raise MissingBackend(f"an algorithm asked to {lane.kind.__name__.lower()}, but {lane.advice}")
                return lane
        raise TypeError(f"an algorithm yielded {request!r}; it may yield Generate, Retrieve and Score requests")

    def _ask(self, run: _Run[Result], asked_for: list[tuple[Request, RequestQueue, Key]]) -> None:
        counts = self.driver.counts
        run.replies = [None] * len(asked_for)
        run.missing = 0
        for slot, (request, lane, key) in enumerate(asked_for):
            name = lane.kind.__name__
            counts.asked[name] = counts.asked.get(name, 0) + 1
            known = lane.cache.get(key, request)
            if known is not None:
                counts.answered_by_cache += 1
                run.replies[slot] = known
                continue
            run.missing += 1
            asked = lane.running.get(key) or lane.waiting.get(key)
            if asked is None:
                asked = lane.waiting[key] = PendingRequest(key, request, run.index)
            else:
                asked.age = min(asked.age, run.index)
                counts.merged += 1
            asked.waiters.append((run, slot, request))

    def _finish(self, run: _Run[Result], outcome: Outcome[Result]) -> None:
        self.finished.append(outcome)
        del self.active[run.index]


class MissingBackend(StepladderError):
    """The driver was not given what its algorithms ask for."""


def _algorithm(job: Job[Result]) -> Algorithm[Result]:
    algorithm = job()
    if not isinstance(algorithm, Generator):
        raise TypeError(f"a job must make a generator; this one made {algorithm!r}")
    return algorithm


def _failure(error: Exception) -> Failure:
    try:
        reason = str(error) if isinstance(error, StepladderError) else f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an error that cannot even be printed
        reason = type(error).__name__
    return Failure(StopReason.FAILED, reason, "".join(traceback.format_exception(error)))


def _close(run: _Run[Any]) -> None:
    """End a generator. What it raises while it is closed cannot change its outcome any more, nor end the run."""
    with suppress(Exception):
        run.algorithm.close()
