"""Several servers that can do the same work: which is asked next, and which of them rest.

In: URLs, and what became of each call. Out: the server for the next call, or how long all of them rest. No I/O.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlsplit

from stepladder.core.errors import StepladderError
from stepladder.core.io.retries import retry_wait

#: After so many failures in a row the rests grow no longer: with a backoff of 0.5 s they are then 16 to 32 s.
_LONGEST_ROW = 7


@dataclass(slots=True, eq=False)
class Host:
    """One server, as this client sees it."""

    url: str
    #: Calls under way.
    calls: int = 0
    #: When it was asked last: a number that grows.
    last: int = 0
    #: Failures since it last answered; those of calls that were under way together count once.
    failures: int = 0
    #: By the clock of `time.monotonic`.
    rests_until: float = 0.0
    problem: str = ""


class LoadBalancer:
    """The servers of one client. Threads may share it."""

    def __init__(self, urls: Sequence[str], backoff: float) -> None:
        self.urls = tuple(urls)
        self._hosts = [Host(url) for url in urls]
        self._backoff = backoff
        self._numbers = count(1)
        self._lock = threading.Lock()

    def take(self) -> tuple[Host | None, float]:
        """The least busy server that does not rest, or None and the seconds until the first of them is back.

        One that failed last is asked by one call at a time, as long as there are others.
        """
        with self._lock:
            now = time.monotonic()
            awake = [host for host in self._hosts if host.rests_until <= now]
            if not awake:
                return None, min(host.rests_until for host in self._hosts) - now
            host = min(awake, key=lambda host: (host.failures > 0 and host.calls > 0, host.calls, host.last))
            host.calls += 1
            host.last = next(self._numbers)
            return host, 0.0

    def leave(self, host: Host) -> None:
        """A call has ended."""
        with self._lock:
            host.calls -= 1

    def answered(self, host: Host) -> None:
        """A call was answered: all is well with this server."""
        with self._lock:
            host.failures, host.rests_until, host.problem = 0, 0.0, ""

    def failed(self, host: Host, problem: str, headers: Mapping[str, str]) -> bool:
        """A call was not answered: the server rests. False when it asks for more patience than anyone has."""
        with self._lock:
            now = time.monotonic()
            host.problem = problem
            if host.rests_until <= now:
                host.failures += 1
            wait = retry_wait(min(host.failures, _LONGEST_ROW), headers, self._backoff)
            if wait is not None:
                host.rests_until = max(host.rests_until, now + wait)
            return wait is not None

    def problems(self) -> list[tuple[str, str]]:
        """The servers that failed last, and how."""
        with self._lock:
            return [(host.url, host.problem) for host in self._hosts if host.problem]


def validate_urls(urls: str | Sequence[str]) -> tuple[str, ...]:
    """URLs that can be called, without the path of the search and a slash at their end.

    >>> validate_urls(["http://node1:8000/retrieve", "https://search.example.org/wiki/"])
    ('http://node1:8000', 'https://search.example.org/wiki')
    """
    given = [urls] if isinstance(urls, str) else list(urls)
    if not given:
        raise StepladderError("no URL of a search server was given; expected one such as http://localhost:8000")
    checked = tuple(_checked(url) for url in given)
    twice = [url for position, url in enumerate(checked) if url in checked[:position]]
    if twice:
        raise StepladderError(f"the search server {twice[0]} is named twice")
    return checked


def _checked(url: str) -> str:
    url = url.strip()
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        usable = False
    if not usable:
        hint = "" if "://" in url else f" Did you mean 'http://{url}'?"
        raise StepladderError(f"{url!r} is not the URL of a search server; expected http://localhost:8000.{hint}")
    if parts.username is not None or parts.query or parts.fragment:
        raise StepladderError(
            f"the URL of the search server at {parts.hostname} has a user, a query or a fragment in it; expected one "
            "such as http://localhost:8000, and the token apart"
        )
    return url.rstrip("/").removesuffix("/retrieve").rstrip("/")
