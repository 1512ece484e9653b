"""Client-side load balancer over equivalent servers, with backoff after failures.

In: URLs, and the outcome of each call. Out: the server for the next call, or how long to wait. No I/O.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlsplit

from stepladder.core.errors import StepladderError
from stepladder.core.io.masking import hide
from stepladder.core.io.retries import retry_wait

#: The backoff stops growing after this many consecutive failures: 16 to 32 s with a base of 0.5 s.
_MAX_BACKOFF_FAILURES = 7


@dataclass(slots=True, eq=False)
class Host:
    """The state of one server."""

    url: str
    #: Calls in flight.
    calls: int = 0
    #: Sequence number of the last call.
    last_call: int = 0
    #: Consecutive failures; those of concurrent calls count once.
    failures: int = 0
    #: End of the backoff, by `time.monotonic`.
    retry_at: float = 0.0
    problem: str = ""


class LoadBalancer:
    """The servers of one client. Thread-safe."""

    def __init__(self, urls: Sequence[str], backoff: float) -> None:
        self.urls = tuple(urls)
        self._hosts = [Host(url) for url in urls]
        self._backoff = backoff
        self._numbers = count(1)
        self._lock = threading.Lock()

    def acquire(self) -> tuple[Host | None, float]:
        """The least busy available server, or None and the seconds until one is available.

        A server whose last call failed gets one call at a time, as long as there are others.
        """
        with self._lock:
            now = time.monotonic()
            available = [host for host in self._hosts if host.retry_at <= now]
            if not available:
                return None, min(host.retry_at for host in self._hosts) - now
            host = min(available, key=lambda host: (host.failures > 0 and host.calls > 0, host.calls, host.last_call))
            host.calls += 1
            host.last_call = next(self._numbers)
            return host, 0.0

    def release(self, host: Host) -> None:
        """A call has ended."""
        with self._lock:
            host.calls -= 1

    def succeeded(self, host: Host) -> None:
        """A call succeeded: reset the backoff."""
        with self._lock:
            host.failures, host.retry_at, host.problem = 0, 0.0, ""

    def failed(self, host: Host, problem: str, headers: Mapping[str, str]) -> bool:
        """A call failed: start a backoff. False if the server asks for a longer wait than is allowed."""
        with self._lock:
            now = time.monotonic()
            host.problem = problem
            if host.retry_at <= now:
                host.failures += 1
            wait = retry_wait(min(host.failures, _MAX_BACKOFF_FAILURES), headers, self._backoff)
            if wait is not None:
                host.retry_at = max(host.retry_at, now + wait)
            return wait is not None

    def problems(self) -> list[tuple[str, str]]:
        """The servers whose last call failed, with the errors."""
        with self._lock:
            return [(host.url, host.problem) for host in self._hosts if host.problem]


def validate_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """The base URLs, validated, without `/retrieve` and trailing slashes.

    >>> validate_urls(["http://node1:8000/retrieve", "https://search.example.org/wiki/"])
    ('http://node1:8000', 'https://search.example.org/wiki')
    """
    given = [urls] if isinstance(urls, str) else list(urls)
    if not given:
        raise StepladderError("no search server URL was given; expected one such as http://localhost:8000")
    valid = tuple(_validate(url) for url in given)
    duplicates = [url for position, url in enumerate(valid) if url in valid[:position]]
    if duplicates:
        raise StepladderError(f"the search server {duplicates[0]} is listed twice")
    return valid


def _validate(url: str) -> str:
    url = hide(url.strip())
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        usable = False
    if not usable:
        hint = "" if "://" in url else f" Did you mean 'http://{url}'?"
        raise StepladderError(f"{url!r} is not the URL of a search server; expected http://localhost:8000.{hint}")
    if parts.query or parts.fragment:
        raise StepladderError(
            f"the URL of the search server at {parts.hostname} contains a query or a fragment; expected one such as "
            "http://localhost:8000, with the token in the environment variable STEPLADDER_TOKEN"
        )
    return url.rstrip("/").removesuffix("/retrieve").rstrip("/")
