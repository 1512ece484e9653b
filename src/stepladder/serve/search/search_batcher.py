"""Dynamic batching of search queries across requests.

In: queries of requests, on an event loop (`SearchBatcher.submit`). Out: one `PendingSearch` per request.

Queries that arrive during a search form the next batch: a single query never waits, and under load batches are full.
Equal queries are searched once, also while the first one is in progress, and results are kept in an LRU cache. Worker
threads, as many as the retriever's concurrency, run the searches. They are daemon threads, so that a hanging search
cannot block the server's shutdown.
"""

import asyncio
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter

from stepladder.core.errors import StepladderError
from stepladder.core.memory import SizedCache
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.remote.protocol import EncodedHits, encode_hits
from stepladder.serve.http.http_errors import QueueFull
from stepladder.serve.http.server_metrics import Metrics
from stepladder.serve.server_configs import ServerConfig

#: Seconds to wait for the threads at shutdown.
_JOIN_SECONDS = 2.0
#: Python's memory overhead per result and per passage, in bytes.
_RESULT_BYTES, _PASSAGE_BYTES = 800, 130

log = logging.getLogger(__name__)


class SearchMetrics(Metrics):
    """The Prometheus metrics of a search server."""

    def __init__(self) -> None:
        buckets = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
        super().__init__("retrieve_seconds", "Latency of POST /retrieve, including queueing.", buckets)
        self.queries = self.counter("queries", "Queries received.")
        self.cache_hits = self.counter("cache_hits", "Queries answered from the cache.")
        self.shared = self.counter("shared", "Queries merged with an equal query in progress.")
        self.truncated = self.counter("truncated", "Queries that were too long and were truncated.")
        self.dropped = self.counter("dropped", "Queries dropped: client disconnected.")
        self.failed = self.counter("failed", "Queries whose search failed.")
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        self.batch_size = self.histogram("batch_size", "Queries per batch.", sizes)


@dataclass(slots=True, eq=False)
class _Search:
    """One query in progress."""

    query: str
    k: int
    started: bool = False
    found: EncodedHits | None = None
    waiters: "set[PendingSearch]" = field(default_factory=set)


@dataclass(slots=True, eq=False)
class PendingSearch:
    """The searches of one request."""

    searches: list[_Search]
    #: Number of unfinished searches.
    remaining: int
    #: Done when all searches are finished, or cancelled with the request that waits for it.
    ready: asyncio.Future[None]

    @property
    def results(self) -> list[EncodedHits] | None:
        """The hits of each query, in order; None if a search failed."""
        found = [search.found for search in self.searches if search.found is not None]
        return found if len(found) == len(self.searches) else None


class _Cache(SizedCache):
    """Finished searches by query and k, limited by entries and bytes; 0 of either disables it.

    The least recently used are evicted first.
    """

    def __init__(self, entries: int, capacity: int) -> None:
        super().__init__(capacity)
        self._entries = entries
        #: Most recently used last, each with its size.
        self._items: OrderedDict[tuple[str, int], tuple[_Search, int]] = OrderedDict()

    def get(self, query: str, k: int) -> _Search | None:
        """The search, which becomes the most recently used; None if it is not cached."""
        found = self._items.get((query, k))
        if found is None:
            return None
        self._items.move_to_end((query, k))
        return found[0]

    def put(self, search: _Search, found: EncodedHits) -> None:
        """Cache a search that found this, unless it exceeds the capacity on its own."""
        content = sum(len(document) + len(score) for document, score in found)
        size = _RESULT_BYTES + 4 * len(search.query) + len(found) * _PASSAGE_BYTES + content
        if size > self.capacity:
            return
        self._items[search.query, search.k] = search, size
        self.bytes += size
        while self._items and (len(self._items) > self._entries or self.overfull()):
            _, (_, freed) = self._items.popitem(last=False)
            self.bytes -= freed

    def clear(self) -> None:
        """Evict everything."""
        self._items.clear()
        self.bytes = 0


class SearchBatcher:
    """Batches the queries of all requests. Call `start` on the event loop that submits queries."""

    def __init__(self, retriever: Retriever, config: ServerConfig, metrics: SearchMetrics) -> None:
        self._retriever, self._metrics, self._max_waiting = retriever, metrics, config.max_waiting
        #: Finished searches. Like `_open`, used on the event loop only.
        self._cache = _Cache(config.cache_entries, config.cache_bytes)
        #: Unfinished searches.
        self._open: dict[tuple[str, int], _Search] = {}
        #: Guards the fields below, which the threads share, and `_Search.started`.
        self._changed = threading.Condition()
        #: Searches that have not started, oldest first.
        self._waiting: OrderedDict[tuple[str, int], _Search] = OrderedDict()
        self._seconds_per_query = 0.0
        self._closed = False
        self._threads: list[threading.Thread] = []
        metrics.gauge("queue_length", "Queries waiting for a search.", lambda: len(self._waiting))
        metrics.gauge("cache_bytes", "Size of the result cache in bytes.", lambda: self._cache.bytes)

    def start(self) -> None:
        """Start the worker threads."""
        self._loop = asyncio.get_running_loop()
        for number in range(self._retriever.concurrency):
            thread = threading.Thread(target=self._work, name=f"search {number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Stop the threads; one that does not finish its search in time is abandoned."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_JOIN_SECONDS)
            if thread.is_alive():
                log.warning("a search did not finish and was abandoned")

    # --- On the event loop ------------------------------------------------------------------------------

    def submit(self, queries: Sequence[str], k: int) -> PendingSearch:
        """Queue the queries of a request; raises `QueueFull`. Call `cancel` if the request is abandoned."""
        searches: dict[str, _Search] = {}
        fresh: list[_Search] = []
        for query in queries:
            if query in searches:
                continue
            known = self._cache.get(query, k) or self._open.get((query, k))
            if known is None:
                known = _Search(query, k)
                fresh.append(known)
            searches[query] = known
        if fresh:
            self._enqueue(fresh)
        pending = PendingSearch([searches[query] for query in queries], 0, self._loop.create_future())
        for search in searches.values():
            if search.found is None:
                search.waiters.add(pending)
                pending.remaining += 1
        self._metrics.queries.inc(len(queries))
        if cached := len(searches) - pending.remaining:
            self._metrics.cache_hits.inc(cached)
        if shared := len(queries) - len(searches) + pending.remaining - len(fresh):
            self._metrics.shared.inc(shared)
        return pending

    def cancel(self, pending: PendingSearch) -> None:
        """Drop the searches of an abandoned request that have not started and that no other request waits for."""
        if not pending.remaining:
            return
        with self._changed:
            for search in pending.searches:
                search.waiters.discard(pending)
                if search.found is None and not search.waiters and not search.started:
                    search.started = True  # drop it once: the request may contain the query twice
                    del self._waiting[search.query, search.k], self._open[search.query, search.k]
                    self._metrics.dropped.inc()

    def _enqueue(self, fresh: list[_Search]) -> None:
        with self._changed:
            waiting = len(self._waiting)
            if waiting + len(fresh) > self._max_waiting:
                raise QueueFull("queries", waiting, waiting * self._seconds_per_query / self._retriever.concurrency)
            for search in fresh:
                self._waiting[search.query, search.k] = self._open[search.query, search.k] = search
            self._changed.notify()

    def _deliver(self, batch: list[_Search], results: list[EncodedHits | None]) -> None:
        self._metrics.batch_size.observe(len(batch))
        for search, found in zip(batch, results, strict=True):
            del self._open[search.query, search.k]
            search.found = found
            if found is None:
                self._metrics.failed.inc()
            else:
                self._cache.put(search, found)
            for pending in search.waiters:
                pending.remaining -= 1
                if not pending.remaining and not pending.ready.done():
                    pending.ready.set_result(None)
            search.waiters.clear()

    # --- In the threads ---------------------------------------------------------------------------------

    def _work(self) -> None:
        while batch := self._take():
            started = perf_counter()
            results = self._search([search.query for search in batch], batch[0].k)
            self._seconds_per_query = (perf_counter() - started) / len(batch)
            with suppress(RuntimeError):  # the event loop has been closed
                self._loop.call_soon_threadsafe(self._deliver, batch, results)

    def _take(self) -> list[_Search]:
        """The next batch: the oldest query, and those with the same k; empty at shutdown."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return []
            k = next(iter(self._waiting.values())).k
            same_k = (search for search in self._waiting.values() if search.k == k)
            batch = list(islice(same_k, self._retriever.max_batch))
            for search in batch:
                search.started = True
                del self._waiting[search.query, k]
            if self._waiting:
                self._changed.notify()
            return batch

    def _search(self, queries: list[str], k: int) -> list[EncodedHits | None]:
        """The hits of each query; None if its search failed. A batch that fails is retried in halves."""
        try:
            results = self._retriever.search(queries, k)
            if len(results) != len(queries):
                raise StepladderError(f"{len(queries)} queries got {len(results)} results")
            return [encode_hits(passages) for passages in results]
        except Exception:  # a query that breaks the retriever must not affect others
            if len(queries) == 1:
                log.exception("the search for %.200r (k=%d) failed", queries[0], k)
                return [None]
        middle = len(queries) // 2
        return self._search(queries[:middle], k) + self._search(queries[middle:], k)
