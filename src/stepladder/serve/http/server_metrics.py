"""What every server counts: requests by status, and the time that the one that matters takes.

In: what happens. Out: a registry of its own, and the page that Prometheus reads. Servers add counters of their own.
"""

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

CONTENT_TYPE = CONTENT_TYPE_LATEST.encode()


class Metrics:
    """The counters of a server."""

    def __init__(self, timed: str, documentation: str, buckets: tuple[float, ...]) -> None:
        """`timed` is the name of the histogram of seconds."""
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("stepladder_requests", "Requests by status.", ["status"], registry=registry)
        self.seconds = Histogram(timed, documentation, buckets=buckets, registry=registry)
        self._by_status: dict[int, Counter] = {}

    def answered(self, status: int) -> None:
        """Count a request; the library's own look-up of a status takes longer than counting."""
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self.requests.labels(status)
        counter.inc()

    def page(self) -> bytes:
        """All counters, in the text format of Prometheus."""
        return generate_latest(self.registry)
