"""Metrics of every server: requests by status, and a histogram of the time of the main endpoint.

In: events. Out: the exposition for Prometheus. Servers add their own metrics. All names begin with `stepladder_`.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Metrics:
    """The metrics of a server."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, seconds_name: str, seconds_help: str, buckets: tuple[float, ...]) -> None:
        """The histogram of seconds has this name, help and buckets."""
        self.registry = CollectorRegistry()
        self.requests = self.counter("requests", "Requests by status.", "status")
        self.seconds = self.histogram(seconds_name, seconds_help, buckets)
        self._by_status: dict[int, Counter] = {}

    def counter(self, name: str, documentation: str, *labels: str) -> Counter:
        """A new counter."""
        return Counter(f"stepladder_{name}", documentation, labels, registry=self.registry)

    def histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        """A new histogram."""
        return Histogram(f"stepladder_{name}", documentation, buckets=buckets, registry=self.registry)

    def gauge(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """A new gauge that calls `value`."""
        Gauge(f"stepladder_{name}", documentation, registry=self.registry).set_function(value)

    def count_request(self, status: int) -> None:
        """Count a request. Counters are cached: the library's own lookup of a status takes longer than counting."""
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self.requests.labels(status)
        counter.inc()

    def page(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self.registry)
