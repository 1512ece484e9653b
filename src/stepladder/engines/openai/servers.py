"""Several servers with the same model: each call goes to the one with the fewest calls in flight.

In: the outcome of each call. Out: the server of the next one. A server that fails is set aside for a while and then
gets one call at a time until one succeeds; one that can never answer (a wrong key, no such model) is given up. No I/O.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from logging import getLogger

from stepladder.core.io.retries import MAX_RETRY_WAIT, retry_wait
from stepladder.engines.openai.http_client import HTTPClient

log = getLogger(__name__)


@dataclass(slots=True, eq=False)
class Server:
    """One server and its state."""

    url: str
    client: HTTPClient
    #: Calls in flight, and calls so far.
    calls: int = 0
    total: int = 0
    #: Consecutive failures, and when it may be called again (`time.monotonic`).
    failures: int = 0
    retry_at: float = 0.0
    #: Whether it has ever responded.
    reached: bool = False
    #: Why it is not called any more.
    given_up: str = ""
    #: Its name for the token limit: newer OpenAI models have another.
    max_tokens_name: str = "max_tokens"


class Servers:
    """The servers of one engine. Used on one event loop."""

    def __init__(self, servers: Sequence[Server], backoff: float) -> None:
        self.all = tuple(servers)
        self._backoff = backoff

    @property
    def usable(self) -> list[Server]:
        """Those that are not given up."""
        return [server for server in self.all if not server.given_up]

    def next(self) -> Server:
        """The server of the next call: the least busy one of those that work, else the first that may work again."""
        usable, now = self.usable, time.monotonic()
        ready = [server for server in usable if server.retry_at <= now]
        if not ready:
            return min(usable, key=lambda server: server.retry_at)
        return min(ready, key=lambda server: (server.failures > 0 and server.calls > 0, server.calls, server.total))

    def has_other(self, server: Server) -> bool:
        """Whether another server works at the moment."""
        now = time.monotonic()
        return any(each is not server and each.retry_at <= now for each in self.usable)

    def succeeded(self, server: Server) -> None:
        """A call was answered."""
        server.failures, server.retry_at, server.reached = 0, 0.0, True

    def failed(self, server: Server, problem: str, wait: float | None) -> None:
        """A call failed: set the server aside. `wait`: as it asked for; None is longer than anybody waits."""
        if server.failures == 0 and len(self.usable) > 1:
            log.warning("%s fails (%s): its calls go to the other servers", server.url, problem)
        server.failures += 1
        backoff = retry_wait(min(server.failures, 6), {}, self._backoff) or 0.0
        server.retry_at = time.monotonic() + max(backoff, MAX_RETRY_WAIT if wait is None else wait)

    def give_up(self, server: Server, problem: str) -> bool:
        """Call a server no more; False if there is no other."""
        if server.given_up:  # by another call in flight
            return True
        if len(self.usable) < 2:
            return False
        log.warning("%s is not called any more: %s", server.url, problem)
        server.given_up = problem
        return True
