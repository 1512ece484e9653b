"""Request queues: pending requests of one kind, and how a batch of them is answered.

In: requests of algorithms. Out: full batches for an engine, a retriever or a scorer, and one reply or error per
request. The driver has one `RequestQueue` per kind of request.
"""

import heapq
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from logging import getLogger
from typing import Any

from stepladder.core.errors import BackendDown, BackendError, StepladderError
from stepladder.core.memory import out_of_memory, release_caches
from stepladder.core.requests import Generate, Rank, Request, Retrieve, Score
from stepladder.core.step_scorer import StepScorer
from stepladder.driver.request_cache import Key, RequestCache, group_of
from stepladder.engines.base import Engine, Session
from stepladder.retrieval.base import Retriever

log = getLogger(__name__)

#: Answers a batch of requests with a backend.
Call = Callable[[Any, list[Any]], Sequence[Any]]


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request and the jobs that wait for its reply."""

    key: Key
    request: Request
    #: The oldest block of the waiting jobs (`RequestQueue.block_of`), and the order of arrival.
    block: int
    number: int
    #: Equal for requests that differ by their seed only, for engines that sample them together.
    group: Key | None = None
    #: (job, position in its list of requests, its own equal request).
    waiters: list[tuple[Any, int, Request]] = field(default_factory=list)


class RequestQueue:
    """Pending and running requests of one kind. Equal requests share an entry and are answered once."""

    def __init__(self, kind: type[Any], backend: Any, call: Call, cache: RequestCache) -> None:
        """`backend` is an engine, a retriever, a scorer or None; `call` answers a batch with it."""
        self.max_batch: int = 1 if backend is None else backend.max_batch
        self.concurrency: int = 1 if backend is None else backend.concurrency
        if min(self.max_batch, self.concurrency) < 1:
            sizes = f"max_batch is {self.max_batch} and concurrency {self.concurrency}"
            raise ValueError(f"{sizes}; both must be at least 1")
        self.kind = kind
        self.backend = backend
        self.call = call
        self.cache = cache
        #: Set for an engine with continuous batching: requests join and leave one by one.
        self.session: Session | None = None
        self.max_samples: int = getattr(backend, "max_samples", 1)
        self.jobs_together: int = getattr(backend, "jobs_together", 1)
        self.join_share: int = getattr(backend, "join_share", 1)
        self.waiting: dict[Key, PendingRequest] = {}
        #: A heap of (block, number, request). Entries of requests that are not waiting any more, or have moved to an
        #: older block, are skipped.
        self._order: list[tuple[int, int, PendingRequest]] = []
        self._numbers = count()
        #: Waiting requests by group, if the engine samples groups together.
        self.groups: dict[Key, dict[Key, PendingRequest]] = {}
        self.running: dict[Key, PendingRequest] = {}
        self.calls = 0
        self.pool = ThreadPoolExecutor(self.concurrency, kind.__name__) if self.concurrency > 1 else None

    def open_session(self) -> Session | None:
        """The running session, or a new one if the engine supports continuous batching."""
        if self.session is None and isinstance(self.backend, Engine):
            self.session = self.backend.open_session()
        return self.session

    def take_joining(self) -> list[PendingRequest]:
        """Requests that join the running session; none while they are few compared with those in it."""
        room = self.max_batch - len(self.running)
        worth_it = min(room, len(self.waiting)) * self.join_share >= len(self.running)
        return self.take_batch(room) if worth_it else []

    def block_of(self, job: int) -> int:
        """The block of a job. Older blocks come first; the jobs of one block advance together."""
        return job // self.jobs_together

    def add(self, key: Key, request: Request, job: int) -> PendingRequest:
        """A new waiting request of a job."""
        pending = self.waiting[key] = PendingRequest(key, request, self.block_of(job), next(self._numbers))
        heapq.heappush(self._order, (pending.block, pending.number, pending))
        if self.max_samples > 1 and isinstance(request, Generate):
            pending.group = group_of(key)
            self.groups.setdefault(pending.group, {})[key] = pending
        return pending

    def join(self, pending: PendingRequest, job: int) -> None:
        """Another job waits for the same request."""
        if self.block_of(job) < pending.block:
            pending.block = self.block_of(job)
            heapq.heappush(self._order, (pending.block, pending.number, pending))

    def take_batch(self, size: int | None = None) -> list[PendingRequest]:
        """The next batch, oldest jobs first, independent of the order in which replies arrived."""
        size = self.max_batch if size is None else size
        batch: list[PendingRequest] = []
        while self.waiting and len(batch) < size:
            block, _, first = heapq.heappop(self._order)
            if block != first.block or self.waiting.get(first.key) is not first:
                continue
            taken = [first] if first.group is None else self._take_samples(first.group)
            for pending in taken:
                self.running[pending.key] = self.waiting.pop(pending.key)
            batch += taken
            if first.group is not None:
                break
        return batch

    def _take_samples(self, name: Key) -> list[PendingRequest]:
        """The samples of one state that are generated together."""
        group = self.groups.pop(name)
        taken = list(group.values())[: self.max_samples]
        if len(taken) < len(group):
            self.groups[name] = {pending.key: pending for pending in list(group.values())[self.max_samples :]}
        return taken

    def reduce_batch(self) -> None:
        """After running out of memory: halve the batch, but not below a quarter of the current limit.

        A few long rows say little about how many others fit, and a single row says nothing.
        """
        before, rows = self.max_batch, len(self.running)
        self.max_batch = max(rows // 2, before // 4, 1) if rows > 1 else before
        if self.max_batch < before:
            log.warning("out of memory with %d rows: the batch size is %d from now on", rows, self.max_batch)

    def start(self, batch: list[PendingRequest]) -> Future[list[Any]]:
        """Begin a call: by the engine itself if it needs no thread for that, else in a thread."""
        assert self.pool is not None
        requests: list[Any] = [pending.request for pending in batch]
        call = self.backend.submit(requests) if isinstance(self.backend, Engine) else None
        return self.pool.submit(self.answer, batch) if call is None else call

    def replies(self, batch: list[PendingRequest], call: Future[list[Any]]) -> list[Any]:
        """One reply or error per request of a call that has ended. Only `BackendDown` is raised."""
        try:
            return _checked(call.result(), len(batch))
        except BackendDown:
            raise
        except CancelledError:
            return [BackendError("the call was cancelled")] * len(batch)
        except Exception as error:  # noqa: BLE001 - a failed call fails its requests, not the run
            return [error] * len(batch)

    def answer(self, batch: list[PendingRequest], *, again: bool = True) -> list[Any]:
        """One reply or error per request. Only `BackendDown` and Ctrl-C are raised.

        A single request that runs out of memory is tried `again` when the caches have been emptied.
        """
        requests = [pending.request for pending in batch]
        try:
            return _checked(self.call(self.backend, requests), len(requests))
        except BackendDown:
            raise
        except Exception as error:  # noqa: BLE001 - a failed call fails its requests, not the run
            failure = error
        # Outside of the handler, so that the memory held by the failed call is released.
        if out_of_memory(failure) and self.pool is None:  # the caches belong to the driver's thread
            failure.__traceback__ = None
            release_caches()
            if again and len(batch) == 1:
                return self.answer(batch, again=False)
        if len(batch) == 1:
            return [failure]
        failure.__traceback__ = None
        middle = len(batch) // 2
        return self.answer(batch[:middle]) + self.answer(batch[middle:])


def _checked(found: Sequence[Any], expected: int) -> list[Any]:
    """The replies of a backend, if they are as many as expected and it is not down."""
    replies = list(found)
    if down := next((reply for reply in replies if isinstance(reply, BackendDown)), None):
        raise down
    if len(replies) != expected:
        raise StepladderError(f"{expected} requests got {len(replies)} replies")
    return replies


def search(retriever: Retriever, requests: list[Retrieve]) -> list[Any]:
    """Answer searches, grouped by k."""
    replies: dict[Retrieve, Any] = {}
    for k in sorted({request.k for request in requests}):
        same = [request for request in requests if request.k == k]
        replies.update(zip(same, retriever.search([request.query for request in same], k), strict=True))
    return [replies[request] for request in requests]


def rank(scorer: StepScorer, requests: list[Rank]) -> Sequence[Any]:
    """Answer ranking requests."""
    return scorer.rank([request.trajectories for request in requests])


def score(scorer: StepScorer, requests: list[Score]) -> Sequence[Any]:
    """Answer scoring requests."""
    if getattr(scorer, "reads_passages", False) and not all(request.retrieved for request in requests):
        raise StepladderError(
            "this step scorer reads the passages of a query, but candidates are not retrieved before they are scored: "
            "set retrieve_first=True in the Guide"
        )
    return scorer.score([request.trajectory for request in requests])
