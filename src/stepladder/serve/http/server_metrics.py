"""Metrics of every server: requests by status, and a histogram of the time of the main endpoint.

In: events. Out: a registry, and its exposition for Prometheus. Servers add their own metrics.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()


class Metrics:
    """The metrics of a server."""

    def __init__(self, histogram_name: str, documentation: str, buckets: tuple[float, ...]) -> None:
        """`histogram_name`: the name of the histogram of seconds."""
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("stepladder_requests", "Requests by status.", ["status"], registry=registry)
        self.seconds = Histogram(histogram_name, documentation, buckets=buckets, registry=registry)
        self._by_status: dict[int, Counter] = {}

    def count_request(self, status: int) -> None:
        """Count a request. Counters are cached: the library's own lookup of a status takes longer than counting."""
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self.requests.labels(status)
        counter.inc()

    def page(self) -> bytes:
        """All metrics, in Prometheus' text format."""
        return generate_latest(self.registry)
