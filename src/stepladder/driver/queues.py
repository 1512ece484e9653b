"""Requests of one kind on their way to whoever answers them: who waits for what, and how a batch is answered.

In: requests, as algorithms make them. Out: full batches for an engine, a retriever or a scorer, and its replies or
errors, one a request. The driver has one `RequestQueue` a kind.
"""

import heapq
import marshal
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from logging import getLogger
from typing import Any

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.requests import Generate, Generation, Request, Retrieve, Score
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Segment
from stepladder.engines.base import Engine, Session
from stepladder.retrieval.base import Retriever

log = getLogger(__name__)

#: Requests join a session when they are at least one to so many under way: each company that joins costs a little.
JOIN_SHARE = 4
#: What makes requests equal: a digest, because a transcript is long and its key may be kept for long.
Key = bytes


def key_of(request: Request) -> Key:
    """The key of a request.

    Log-probs do not count: the same tokens, drawn in another batch, may have come with others by a rounding. The
    question counts, because engines that play by rule may answer two questions of one text differently.
    """
    digest = blake2b(type(request).__name__.encode(), digest_size=16)

    def add(*parts: object) -> None:
        digest.update(repr(parts).encode("utf-8", "surrogatepass"))

    def read(segments: Sequence[Segment]) -> None:
        # Format 2 has no back references, which would tell whether equal values are the same object.
        parts = [(each.author.value, each.text, each.tokens, each.vocabulary) for each in segments]
        digest.update(marshal.dumps(parts, 2))

    if isinstance(request, Retrieve):
        add(request.query, request.k)
    elif isinstance(request, Generate):
        add(request.stop, request.sampling, request.seed, request.trajectory and request.trajectory.question.id)
        read(request.context)
    else:
        trajectory = request.trajectory
        add(trajectory.question, trajectory.agent, trajectory.stop, trajectory.given)
        for step in trajectory.steps:
            add(step.action, step.passages, step.restarts)
            read((*step.read, step.written))
    return digest.digest()


class Cache:
    """The most recently used replies."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.replies: OrderedDict[Key, Any] = OrderedDict()

    def get(self, key: Key, request: Request) -> Any | None:
        """The reply to a request, if it is known."""
        if key not in self.replies:
            return None
        self.replies.move_to_end(key)
        return _completed(self.replies[key], request)

    def put(self, key: Key, request: Request, reply: Any) -> None:
        """Keep the reply to a request, and forget the oldest."""
        if self.size:
            self.replies[key] = _shortened(reply, request)
        if len(self.replies) > self.size:
            self.replies.popitem(last=False)


def _shortened(reply: Any, request: Request) -> Any:
    """The reply without the part of its context that every equal request has, with token ids, by itself."""
    if not (isinstance(reply, Generation) and isinstance(request, Generate)):
        return reply
    new = (now for asked, now in zip(request.context, reply.context, strict=True) if not asked.tokens)
    return replace(reply, context=tuple(new))


def _completed(reply: Any, request: Request) -> Any:
    """The whole reply again, for a request that may have drawn its tokens with log-probs of its own."""
    if not (isinstance(reply, Generation) and isinstance(request, Generate)):
        return reply
    new = iter(reply.context)
    return replace(reply, context=tuple(each if each.tokens else next(new) for each in request.context))


class PendingRequest:
    """A request and those who wait for its reply."""

    __slots__ = ("age", "key", "request", "waiters")

    def __init__(self, key: Key, request: Request, age: int) -> None:
        self.key = key
        self.request = request
        #: Smallest index among those who wait: older jobs come first.
        self.age = age
        #: Who, at which place among the requests they made together, and the request in their own words.
        self.waiters: list[tuple[Any, int, Request]] = []

    def reply_for(self, request: Request, reply: Any) -> Any:
        """The reply as it is handed to one of those who wait."""
        return reply if request is self.request else _completed(_shortened(reply, self.request), request)


class RequestQueue:
    """One kind of request: who waits for what, and how to answer a batch."""

    def __init__(
        self,
        kind: type[Any],
        call: Callable[[list[Any]], Sequence[Any]] | None,
        max_batch: int,
        concurrency: int,
        advice: str,
        cache: Cache,
        open_session: Callable[[], Session | None] = lambda: None,
    ) -> None:
        if max_batch < 1 or concurrency < 1:
            raise ValueError(f"max_batch is {max_batch} and concurrency {concurrency}; both must be at least 1")
        self.kind = kind
        self.call = call
        self.max_batch = max_batch
        self.concurrency = concurrency
        self.advice = advice
        self.cache = cache
        self.open_session = open_session
        #: Of an engine that requests may join and leave one by one.
        self.session: Session | None = None
        #: Equal requests share an entry: each is answered once for all who asked.
        self.waiting: dict[Key, PendingRequest] = {}
        self.running: dict[Key, PendingRequest] = {}
        self.calls = 0
        self.pool = ThreadPoolExecutor(concurrency, f"{kind.__name__}") if concurrency > 1 else None

    def take_batch(self) -> list[PendingRequest]:
        """The next batch, by age of the job, whatever the order in which replies came in."""
        return self._take(self.max_batch)

    def take_joining(self) -> list[PendingRequest]:
        """Requests to join those under way in a session; none while they would be few beside those."""
        room = self.max_batch - len(self.running)
        worth_it = min(room, len(self.waiting)) * JOIN_SHARE >= len(self.running)
        return self._take(room) if worth_it else []

    def _take(self, count: int) -> list[PendingRequest]:
        batch = heapq.nsmallest(count, self.waiting.values(), key=lambda asked: asked.age)
        for asked in batch:
            self.running[asked.key] = self.waiting.pop(asked.key)
        return batch

    def narrow(self) -> None:
        """There was no room for those under way: from now on half as many at a time, but not much fewer than before.

        A few rows that were too long say little about how many others fit, and a single one nothing.
        """
        before, rows = self.max_batch, len(self.running)
        self.max_batch = max(rows // 2, before // 4, 1) if rows > 1 else before
        if self.max_batch < before:
            log.warning("not enough memory for %d rows at a time, at most %d from now on", rows, self.max_batch)

    def answer(self, batch: list[PendingRequest]) -> list[Any]:
        """Replies or errors, one a request. Only `BackendDown` and Ctrl-C come through as exceptions."""
        assert self.call is not None
        requests = [asked.request for asked in batch]
        try:
            replies = list(self.call(requests))
            if down := next((reply for reply in replies if isinstance(reply, BackendDown)), None):
                raise down
            if len(replies) == len(requests):
                return replies
            failure: Exception = StepladderError(f"{len(requests)} requests got {len(replies)} replies")
        except BackendDown:
            raise
        except Exception as error:  # noqa: BLE001 - a broken call fails its requests, not the run
            failure = error
        # Outside of the handler, so that what the failed call held (GPU memory) is free again.
        if len(batch) == 1:
            return [failure]
        failure.__traceback__ = None
        middle = len(batch) // 2
        return self.answer(batch[:middle]) + self.answer(batch[middle:])


def lane_for(kind: type[Any], call: Any, backend: Any, advice: str, cache: Cache) -> RequestQueue:
    """The lane to a backend; without one, `advice` says what to pass."""
    if backend is None:
        return RequestQueue(kind, None, 1, 1, advice, cache)
    open_session = backend.open_session if isinstance(backend, Engine) else lambda: None
    return RequestQueue(kind, call, backend.max_batch, backend.concurrency, advice, cache, open_session)


def search_call(retriever: Retriever | None) -> Callable[[list[Retrieve]], Sequence[Any]] | None:
    """Searches grouped by k, as a retriever takes them."""
    if retriever is None:
        return None

    def search(requests: list[Retrieve]) -> list[Any]:
        replies: dict[Retrieve, Any] = {}
        for k in sorted({request.k for request in requests}):
            same = [request for request in requests if request.k == k]
            replies.update(zip(same, retriever.search([request.query for request in same], k), strict=True))
        return [replies[request] for request in requests]

    return search


def score_call(scorer: StepScorer | None) -> Callable[[list[Score]], Sequence[Any]] | None:
    """Trajectories as a scorer takes them."""
    if scorer is None:
        return None
    return lambda requests: scorer.score([request.trajectory for request in requests])
