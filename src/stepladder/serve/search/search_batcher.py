"""Searches of many requests, merged into batches: the heart of the search server.

In: queries of requests, on an event loop (`SearchQueue.ask`). Out: a `PendingSearch` each, ready when all are answered.

Whatever has queued up while a batch was being searched goes into the next one: alone a query waits for nobody, and
under load batches are full. Equal queries are searched once, also while the first of them is under way, and the most
recent results are kept. The searching is done by as many threads as the retriever takes calls at once; they are
daemons, so that a search that hangs cannot keep a server from ending.
"""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter

from prometheus_client import Counter, Gauge, Histogram

from stepladder.core.errors import StepladderError
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.remote.protocol import EncodedHits, encode_hits
from stepladder.serve.http.server_metrics import Metrics
from stepladder.serve.http.timeouts import QueueFull
from stepladder.serve.search.lru import LRUCache

#: How long the threads are waited for at the end, in seconds.
_LAST_WAIT = 2.0
#: Bytes that Python needs beside the text, for a result and for a passage in it.
_RESULT_BYTES, _PASSAGE_BYTES = 800, 130

log = logging.getLogger(__name__)


class SearchMetrics(Metrics):
    """What a search server counts."""

    def __init__(self) -> None:
        buckets = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
        super().__init__("stepladder_retrieve_seconds", "Time to answer POST /retrieve, waiting included.", buckets)
        registry = self.registry
        self.queries = Counter("stepladder_queries", "Queries asked.", registry=registry)
        self.cache_hits = Counter("stepladder_cache_hits", "Queries answered from the cache.", registry=registry)
        self.shared = Counter("stepladder_shared", "Queries that joined an equal one.", registry=registry)
        self.dropped = Counter("stepladder_dropped", "Queries nobody waited for any more.", registry=registry)
        self.failed = Counter("stepladder_failed", "Queries whose search failed.", registry=registry)
        self.batch_size = Histogram(
            "stepladder_batch_size",
            "Queries a batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
            registry=registry,
        )
        self.queue_length = Gauge("stepladder_queue_length", "Queries that wait for a search.", registry=registry)
        self.cache_bytes = Gauge("stepladder_cache_bytes", "Bytes of the results that are kept.", registry=registry)


@dataclass(slots=True, eq=False)
class _Search:
    """One query on its way."""

    query: str
    k: int
    #: Searches are taken in the order of their numbers.
    number: int
    begun: bool = False
    found: EncodedHits | None = None
    tickets: "set[PendingSearch]" = field(default_factory=set)


@dataclass(slots=True, eq=False)
class PendingSearch:
    """What one request waits for."""

    searches: list[_Search]
    #: Searches that are not answered yet.
    missing: int
    #: True when none is missing; False when nobody waits any more.
    ready: asyncio.Future[bool]

    def leave(self) -> None:
        """Wait no longer."""
        if not self.ready.done():
            self.ready.set_result(False)

    @property
    def results(self) -> list[EncodedHits] | None:
        """What was found for each query, in order; None when a search failed."""
        found = [search.found for search in self.searches if search.found is not None]
        return found if len(found) == len(self.searches) else None


def _bytes(query: str, found: EncodedHits) -> int:
    """About how much memory a result takes that is kept."""
    written = sum(len(document) + len(score) for document, score in found)
    return _RESULT_BYTES + 4 * len(query) + len(found) * _PASSAGE_BYTES + written


class SearchBatcher:
    """Queries of all requests. `start` it on the event loop on which it is asked."""

    def __init__(
        self, retriever: Retriever, *, max_waiting: int, cache_entries: int, cache_bytes: int, metrics: SearchMetrics
    ) -> None:
        self._retriever = retriever
        self._max_waiting = max_waiting
        self._metrics = metrics
        self._numbers = count()
        #: Answered. Like `_open`, touched on the event loop alone.
        self._cache: LRUCache[tuple[str, int], _Search] = LRUCache(cache_entries, cache_bytes)
        #: Not answered yet.
        self._open: dict[tuple[str, int], _Search] = {}
        #: Guards what follows, which the threads share, and whether a search has begun.
        self._changed = threading.Condition()
        #: Not begun yet, by k: a batch has one k.
        self._waiting: dict[int, OrderedDict[str, _Search]] = {}
        self._length = 0
        self._seconds_a_query = 0.0
        self._closed = False
        self._threads: list[threading.Thread] = []
        metrics.queue_length.set_function(lambda: self._length)
        metrics.cache_bytes.set_function(lambda: self._cache.size)

    def start(self) -> None:
        """Begin to search."""
        self._loop = asyncio.get_running_loop()
        for number in range(self._retriever.concurrency):
            thread = threading.Thread(target=self._work, name=f"search {number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """End the threads; one that is in the middle of a search is left behind after a moment."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_LAST_WAIT)
            if thread.is_alive():
                log.warning("a search did not end and was left behind")

    # --- On the event loop ------------------------------------------------------------------------------

    def ask(self, queries: Sequence[str], k: int) -> PendingSearch:
        """Queue the queries of a request, if there is room. `drop` the ticket when nobody waits for it any more."""
        searches: dict[str, _Search] = {}
        fresh: list[_Search] = []
        for query in queries:
            if query in searches:
                continue
            known = self._cache.get((query, k)) or self._open.get((query, k))
            if known is None:
                known = _Search(query, k, next(self._numbers))
                fresh.append(known)
            searches[query] = known
        if fresh:
            self._enqueue(fresh)
        ticket = PendingSearch([searches[query] for query in queries], 0, self._loop.create_future())
        for search in searches.values():
            if search.found is None:
                search.tickets.add(ticket)
                ticket.missing += 1
        self._metrics.queries.inc(len(queries))
        if kept := len(searches) - ticket.missing:
            self._metrics.cache_hits.inc(kept)
        if shared := len(queries) - len(searches) + ticket.missing - len(fresh):
            self._metrics.shared.inc(shared)
        return ticket

    def drop(self, ticket: PendingSearch) -> None:
        """Nobody waits for a ticket any more: what has not begun, and nobody else asked for, is not searched."""
        if not ticket.missing:
            return
        with self._changed:
            for search in ticket.searches:
                search.tickets.discard(ticket)
                if search.found is None and not search.tickets and not search.begun:
                    search.begun = True  # never again: the query may stand in the ticket twice
                    group = self._waiting[search.k]
                    del group[search.query], self._open[search.query, search.k]
                    if not group:
                        del self._waiting[search.k]
                    self._length -= 1
                    self._metrics.dropped.inc()

    def _enqueue(self, fresh: list[_Search]) -> None:
        with self._changed:
            if self._length + len(fresh) > self._max_waiting:
                seconds = self._length * self._seconds_a_query / self._retriever.concurrency
                raise QueueFull("queries", self._length, seconds)
            for search in fresh:
                self._waiting.setdefault(search.k, OrderedDict())[search.query] = search
                self._open[search.query, search.k] = search
            self._length += len(fresh)
            self._changed.notify()

    def _deliver(self, batch: list[_Search], results: list[EncodedHits | None]) -> None:
        self._metrics.batch_size.observe(len(batch))
        for search, found in zip(batch, results, strict=True):
            key = search.query, search.k
            del self._open[key]
            search.found = found
            if found is None:
                self._metrics.failed.inc()
            else:
                self._cache.put(key, search, _bytes(search.query, found))
            for ticket in search.tickets:
                ticket.missing -= 1
                if not ticket.missing and not ticket.ready.done():
                    ticket.ready.set_result(True)
            search.tickets.clear()

    # --- In the threads ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while batch := self._take():
            began = perf_counter()
            results = self._search([search.query for search in batch], batch[0].k)
            self._seconds_a_query = (perf_counter() - began) / len(batch)
            with suppress(RuntimeError):  # the loop has ended meanwhile: nobody is left to hear the answer
                self._loop.call_soon_threadsafe(self._deliver, batch, results)

    def _take(self) -> list[_Search]:
        """The next batch, led by the query that has waited longest; empty at the end."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            k, group = min(self._waiting.items(), key=lambda item: next(iter(item[1].values())).number)
            batch = [group.popitem(last=False)[1] for _ in range(min(len(group), self._retriever.max_batch))]
            for search in batch:
                search.begun = True
            if not group:
                del self._waiting[k]
            self._length -= len(batch)
            if self._waiting:
                self._changed.notify()
            return batch

    def _search(self, queries: list[str], k: int) -> list[EncodedHits | None]:
        """What was found for each query; None where the search failed. A batch that fails is searched in halves."""
        try:
            results = self._retriever.search(queries, k)
            if len(results) != len(queries):
                raise StepladderError(f"{len(queries)} queries got {len(results)} results")
            return [encode_hits(passages) for passages in results]
        except Exception:  # a query that breaks the retriever fails alone, and the server goes on
            if len(queries) == 1:
                log.exception("the search for %.200r (k=%d) failed", queries[0], k)
                return [None]
        middle = len(queries) // 2
        return self._search(queries[:middle], k) + self._search(queries[middle:], k)
