"""Requests of one kind on their way to whoever answers them: who waits for what, and how a batch is answered.

In: requests, as algorithms make them. Out: full batches for an engine, a retriever or a scorer, and its replies or
errors, one a request. The driver has one `Lane` a kind.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from stepladder.engines.base import EngineDown
from stepladder.errors import StepladderError
from stepladder.request import Generate, Request, Retrieve
from stepladder.retrieval.base import Retriever


class Cache:
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


class Key:
    """What makes requests equal, hashed once: a transcript is long, and looked up often.

    The question counts, because engines that play by rule may answer two questions of one text differently.
    """

    __slots__ = ("hash", "parts")

    def __init__(self, request: Request) -> None:
        trajectory = request.trajectory if isinstance(request, Generate) else None
        self.parts = (request, trajectory.question.id if trajectory is not None else None)
        self.hash = hash(self.parts)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.hash == other.hash and self.parts == other.parts


class Asked:
    """A request and those who wait for its reply."""

    __slots__ = ("age", "key", "request", "waiters")

    def __init__(self, key: Key, request: Request, age: int) -> None:
        self.key = key
        self.request = request
        #: Smallest index among those who wait: older jobs come first.
        self.age = age
        #: Who, and at which place among the requests they made together.
        self.waiters: list[tuple[Any, int]] = []


class Lane:
    """One kind of request: who waits for what, and how to answer a batch."""

    def __init__(
        self,
        kind: type[Any],
        call: Callable[[list[Any]], Sequence[Any]] | None,
        max_batch: int,
        concurrency: int,
        advice: str,
    ) -> None:
        if max_batch < 1 or concurrency < 1:
            raise ValueError(f"max_batch is {max_batch} and concurrency {concurrency}; both must be at least 1")
        self.kind = kind
        self.call = call
        self.max_batch = max_batch
        self.concurrency = concurrency
        self.advice = advice
        #: Equal requests share an entry: each is answered once for all who asked.
        self.waiting: dict[Key, Asked] = {}
        self.running: dict[Key, Asked] = {}
        self.calls = 0
        self.pool = ThreadPoolExecutor(concurrency, f"{kind.__name__}") if concurrency > 1 else None

    def take_batch(self) -> list[Asked]:
        """The next batch, by age of the job, whatever the order in which replies came in."""
        batch = heapq.nsmallest(self.max_batch, self.waiting.values(), key=lambda asked: asked.age)
        for asked in batch:
            self.running[asked.key] = self.waiting.pop(asked.key)
        return batch

    def answer(self, batch: list[Asked]) -> list[Any]:
        """Replies or errors, one a request. Only `EngineDown` and Ctrl-C come through as exceptions."""
        assert self.call is not None
        requests = [asked.request for asked in batch]
        try:
            replies = list(self.call(requests))
            if len(replies) == len(requests):
                return replies
            failure: Exception = StepladderError(f"{len(requests)} requests got {len(replies)} replies")
        except EngineDown:
            raise
        except Exception as error:  # noqa: BLE001 - a broken call fails its requests, not the run
            failure = error
        # Outside of the handler, so that what the failed call held (GPU memory) is free again.
        if len(batch) == 1:
            return [failure]
        failure.__traceback__ = None
        middle = len(batch) // 2
        return self.answer(batch[:middle]) + self.answer(batch[middle:])


def lane_for(kind: type[Any], call: Any, backend: Any, advice: str) -> Lane:
    """The lane to a backend; without one, `advice` says what to pass."""
    if backend is None:
        return Lane(kind, None, 1, 1, advice)
    return Lane(kind, call, backend.max_batch, backend.concurrency, advice)


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
