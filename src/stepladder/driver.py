"""The one place that does the work: runs any number of algorithms together on one engine and one index.

In: jobs, each making a generator that yields requests (see request.py). Out: an `Outcome` a job: what the generator
returned, or why it failed. The driver alone knows about batches, threads, caches and Ctrl-C:

- Requests of all running algorithms are gathered into full batches; equal requests are answered once.
- An engine that takes one call at a time is called only when every cheaper request (search before scoring before
  generation) has been answered. Its batches are then as full as they can be, and the same on every run. An engine or
  retriever with `concurrency` above 1 is called from that many threads, as requests come in.
- An algorithm that raises, or whose request fails, becomes a failed outcome; the others go on.
- Ctrl-C ends the run after what has been finished: `run` raises `Interrupted` with the outcomes so far.
"""

import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, Generic, Protocol

from stepladder.engines.base import Engine, EngineDown
from stepladder.errors import StepladderError
from stepladder.request import Algorithm, Generate, Job, Request, Result, Retrieve, Score
from stepladder.retrieval.base import Retriever
from stepladder.trace import StopReason


class Scorer(Protocol):
    """Grades steps: a process reward model, or a rule."""

    max_batch: int
    concurrency: int

    def score(self, requests: Sequence[Score]) -> Sequence[tuple[float, ...] | Exception]:
        """For each trajectory, one score a step."""


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
    answered_by_cache: int = 0
    merged: int = 0
    calls: dict[str, int] = field(default_factory=dict)


class Driver:
    """Runs algorithms on an engine, a retriever and a scorer; whichever of them the algorithms ask for."""

    def __init__(
        self,
        engine: Engine | None = None,
        retriever: Retriever | None = None,
        scorer: Scorer | None = None,
        *,
        in_flight: int = 1024,
        retrieval_cache: int = 65_536,
    ) -> None:
        """`in_flight` jobs are open at once; `retrieval_cache` is how many searches are remembered."""
        if in_flight < 1:
            raise ValueError(f"in_flight is {in_flight}; at least 1 job must be open")
        self.engine = engine
        self.retriever = retriever
        self.scorer = scorer
        self.in_flight = in_flight
        self.searches = _Cache(retrieval_cache)
        self.counts = Counts()

    def run(self, jobs: Iterable[Job[Result]], watch: Watcher | None = None) -> list[Outcome[Result]]:
        """Run every job; the outcomes come in the order of the jobs."""
        outcomes: dict[int, Outcome[Result]] = {}
        started = 0

        def counted() -> Iterator[Job[Result]]:
            nonlocal started
            for job in jobs:
                started += 1
                yield job

        try:
            for outcome in self.stream(counted()):
                outcomes[outcome.index] = outcome
                if watch is not None:
                    watch(outcome)
        except KeyboardInterrupt:
            total = len(jobs) if isinstance(jobs, Sequence) else started
            cancelled = Failure(StopReason.CANCELLED, "the run was interrupted")
            raise Interrupted(
                [outcomes.get(index, Outcome(index, failure=cancelled)) for index in range(total)]
            ) from None
        return [outcomes[index] for index in sorted(outcomes)]

    def stream(self, jobs: Iterable[Job[Result]]) -> Iterator[Outcome[Result]]:
        """Run every job; outcomes come as they are finished, and nothing of them is kept here."""
        session: _Session[Result] = _Session(self, jobs)
        try:
            yield from session.outcomes()
        finally:
            session.close()


class _Cache:
    """The most recently used replies."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.replies: OrderedDict[Request, Any] = OrderedDict()

    def get(self, request: Request) -> Any | None:
        if request in self.replies:
            self.replies.move_to_end(request)
            return self.replies[request]
        return None

    def put(self, request: Request, reply: Any) -> None:
        self.replies[request] = reply
        if len(self.replies) > self.size:
            self.replies.popitem(last=False)


class _Run(Generic[Result]):
    """A job under way: its generator, and the replies it is waiting for."""

    __slots__ = ("algorithm", "index", "missing", "replies", "single")

    def __init__(self, index: int, algorithm: Algorithm[Result]) -> None:
        self.index = index
        self.algorithm = algorithm
        self.replies: list[Any] = []
        self.missing = 0
        self.single = True


class _Lane:
    """One kind of request: who waits for what, and how to answer a batch."""

    def __init__(
        self,
        kind: type[Any],
        call: Callable[[list[Any]], Sequence[Any]] | None,
        max_batch: int,
        concurrency: int,
        advice: str,
    ) -> None:
        self.kind = kind
        self.call = call
        self.max_batch = max_batch
        self.concurrency = concurrency
        self.advice = advice
        #: Equal requests share an entry: each is answered once for all who asked.
        self.waiting: dict[Any, list[tuple[_Run[Any], int]]] = {}
        self.running = 0
        self.pool = ThreadPoolExecutor(concurrency, f"{kind.__name__}") if concurrency > 1 else None

    def take_batch(self) -> list[tuple[Any, list[tuple[_Run[Any], int]]]]:
        """The next batch, by age of the job, whatever the order in which replies came in."""
        ordered = sorted(self.waiting.items(), key=lambda item: item[1][0][0].index)[: self.max_batch]
        for request, _ in ordered:
            del self.waiting[request]
        return ordered

    def answer(self, requests: list[Any]) -> Sequence[Any]:
        """Replies or errors, one a request. Only `EngineDown` and Ctrl-C come through as exceptions."""
        assert self.call is not None
        try:
            replies = self.call(requests)
        except EngineDown:
            raise
        except Exception as error:  # noqa: BLE001 - a broken call fails its requests, not the run
            return [error] * len(requests)
        if len(replies) != len(requests):
            return [StepladderError(f"{len(requests)} requests got {len(replies)} replies")] * len(requests)
        return replies


class _Session(Generic[Result]):
    """The state of one `Driver.stream`."""

    def __init__(self, driver: Driver, jobs: Iterable[Job[Result]]) -> None:
        self.driver = driver
        self.jobs = enumerate(jobs)
        self.active: dict[int, _Run[Result]] = {}
        self.finished: deque[Outcome[Result]] = deque()
        self.completed: SimpleQueue[tuple[_Lane, list[Any], Any]] = SimpleQueue()
        retriever, scorer, engine = driver.retriever, driver.scorer, driver.engine
        # Cheapest first: a lane that takes one call at a time waits for those before it.
        self.lanes = (
            _lane(Retrieve, _search_call(retriever), retriever, "there is no index to search: pass a retriever"),
            _lane(Score, scorer and scorer.score, scorer, "there is no reward model: pass a scorer"),
            _lane(Generate, engine and engine.generate, engine, "there is no model: pass an engine"),
        )

    def outcomes(self) -> Iterator[Outcome[Result]]:
        while True:
            self._admit()
            while self.finished:
                yield self.finished.popleft()
                self._admit()
            if not self.active:
                return
            self._work()

    def close(self) -> None:
        """Stop what is still running; called at the end, on Ctrl-C and when the consumer goes away."""
        if any(lane.running for lane in self.lanes) and self.driver.engine is not None:
            self.driver.engine.cancel()
        for lane in self.lanes:
            if lane.pool is not None:
                lane.pool.shutdown(wait=False, cancel_futures=True)
        for run in self.active.values():
            run.algorithm.close()

    def _admit(self) -> None:
        """Open jobs up to the limit."""
        while len(self.active) < self.driver.in_flight:
            try:
                index, job = next(self.jobs)
            except StopIteration:
                return
            run = _Run(index, job())
            self.active[index] = run
            self._advance(run, lambda run=run: next(run.algorithm))  # type: ignore[misc]

    def _work(self) -> None:
        """Start what can start, then take in at least one set of replies."""
        for lane in self.lanes:
            while lane.pool is not None and lane.waiting and lane.running < lane.concurrency:
                self._start(lane, lane.take_batch())
        for lane in self.lanes:
            if lane.pool is None and lane.waiting and not self._busy_before(lane):
                batch = lane.take_batch()
                self._count_call(lane)
                self._deliver(lane, batch, lane.answer([request for request, _ in batch]))
                return
        lane, batch, replies = self.completed.get()
        lane.running -= 1
        if isinstance(replies, BaseException):
            raise replies
        self._deliver(lane, batch, replies)

    def _busy_before(self, lane: _Lane) -> bool:
        cheaper = self.lanes[: self.lanes.index(lane)]
        return any(other.running or other.waiting for other in cheaper)

    def _start(self, lane: _Lane, batch: list[Any]) -> None:
        """Call from a thread; the replies come back through `completed`."""
        assert lane.pool is not None
        self._count_call(lane)
        lane.running += 1

        def work() -> None:
            try:
                replies: Any = lane.answer([request for request, _ in batch])
            except BaseException as error:  # noqa: BLE001 - handed to the main thread, which raises it
                replies = error
            self.completed.put((lane, batch, replies))

        lane.pool.submit(work)

    def _count_call(self, lane: _Lane) -> None:
        calls = self.driver.counts.calls
        calls[lane.kind.__name__] = calls.get(lane.kind.__name__, 0) + 1

    def _deliver(self, lane: _Lane, batch: list[Any], replies: Sequence[Any]) -> None:
        """Hand replies to those who wait, and let them go on."""
        for (request, waiters), reply in zip(batch, replies):
            if lane.kind is Retrieve and not isinstance(reply, Exception):
                self.driver.searches.put(request, reply)
            for run, slot in waiters:
                run.replies[slot] = reply
                run.missing -= 1
                if run.missing == 0:
                    self._resume(run)

    def _resume(self, run: _Run[Result]) -> None:
        failed = next((reply for reply in run.replies if isinstance(reply, Exception)), None)
        if failed is not None:
            self._advance(run, lambda: run.algorithm.throw(failed))
        else:
            reply = run.replies[0] if run.single else run.replies
            self._advance(run, lambda: run.algorithm.send(reply))

    def _advance(self, run: _Run[Result], go_on: Callable[[], Any]) -> None:
        """Let one algorithm go on until it waits for a reply that is not at hand, or is done."""
        while True:
            try:
                asked = go_on()
                requests = [asked] if isinstance(asked, Request) else list(asked)
                run.single = isinstance(asked, Request)
                lanes = [self._lane_for(request) for request in requests]
            except StopIteration as end:
                self._finish(run, Outcome(run.index, value=end.value))
                return
            except (EngineDown, _NoBackend):
                raise
            except Exception as error:  # noqa: BLE001 - recorded with its reason; the others go on
                reason = str(error) if isinstance(error, StepladderError) else f"{type(error).__name__}: {error}"
                failure = Failure(StopReason.FAILED, reason, traceback.format_exc())
                run.algorithm.close()
                self._finish(run, Outcome(run.index, failure=failure))
                return
            self._ask(run, requests, lanes)
            if run.missing:
                return
            replies = run.replies[0] if run.single else run.replies
            go_on = lambda replies=replies: run.algorithm.send(replies)  # type: ignore[misc] # noqa: E731

    def _lane_for(self, request: object) -> _Lane:
        for lane in self.lanes:
            if isinstance(request, lane.kind):
                if lane.call is None:
                    raise _NoBackend(f"an algorithm asked to {lane.kind.__name__.lower()}, but {lane.advice}")
                return lane
        raise TypeError(f"an algorithm yielded {request!r}; it may yield Generate, Retrieve and Score requests")

    def _ask(self, run: _Run[Result], requests: list[Request], lanes: list[_Lane]) -> None:
        counts = self.driver.counts
        run.replies = [None] * len(requests)
        run.missing = 0
        for slot, (request, lane) in enumerate(zip(requests, lanes)):
            name = lane.kind.__name__
            counts.asked[name] = counts.asked.get(name, 0) + 1
            known = self.driver.searches.get(request) if lane.kind is Retrieve else None
            if known is not None:
                counts.answered_by_cache += 1
                run.replies[slot] = known
                continue
            run.missing += 1
            waiters = lane.waiting.setdefault(request, [])
            counts.merged += bool(waiters)
            waiters.append((run, slot))

    def _finish(self, run: _Run[Result], outcome: Outcome[Result]) -> None:
        del self.active[run.index]
        self.finished.append(outcome)


class _NoBackend(StepladderError):
    """The driver was not given what its algorithms ask for."""


def _lane(kind: type[Any], call: Any, backend: Any, advice: str) -> _Lane:
    if backend is None:
        return _Lane(kind, None, 1, 1, advice)
    return _Lane(kind, call, backend.max_batch, backend.concurrency, advice)


def _search_call(retriever: Retriever | None) -> Callable[[list[Retrieve]], Sequence[Any]] | None:
    if retriever is None:
        return None

    def search(requests: list[Retrieve]) -> list[Any]:
        replies: dict[Retrieve, Any] = {}
        for k in sorted({request.k for request in requests}):
            same = [request for request in requests if request.k == k]
            replies.update(zip(same, retriever.search([request.query for request in same], k), strict=True))
        return [replies[request] for request in requests]

    return search
