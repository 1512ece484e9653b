"""Remote retriever: one or several search servers with Search-R1's protocol.

In: URLs of servers (`stepladder serve`, Search-R1's, ProRAG's) with the same index, and queries. Out: passages.

Each call goes to the least busy server. A server that does not respond, is busy or is shutting down is skipped for the
time it asks for, or else with exponential backoff, and its calls go to the others; a run survives the restart of a
server. If no server responds, `SearchDown` names the servers and their errors and stops the run.

    with closing(RemoteRetriever(["http://node1:8000", "http://node2:8000"])) as retriever:
        (found,) = retriever.search(["Who designed Orm Tower?"], k=3)

Queries are truncated to 8,192 characters, or to the server's limit.
Proxy environment variables are ignored: search servers are assumed to be local.
"""

import json
import threading
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import httpx2

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.io.auth_token import TOKEN_VARIABLE, validate_token
from stepladder.core.io.known_servers import withheld
from stepladder.core.io.masking import reveal
from stepladder.core.io.reply_size import PLAIN, LongReply, limit_reply
from stepladder.core.trace import Passage
from stepladder.retrieval.base import Retriever, check_search
from stepladder.retrieval.remote.load_balancer import Host, LoadBalancer, validate_urls
from stepladder.retrieval.remote.protocol import MAX_QUERY_CHARACTERS, BadReply, read_reply, write_request

#: Attempts to reach servers if none has ever responded: they are more likely absent than busy.
FIRST_ATTEMPTS = 3
#: Connect timeout in seconds; a running server accepts connections quickly, even under load.
_CONNECT_SECONDS = 5.0
#: Status codes that are worth a retry: the server is busy or restarts, or a gateway in front of it cannot reach it.
_RETRYABLE = {429, 502, 503, 504}
#: Maximum bytes of a reply per passage that it may contain, but at least and at most in all.
_PASSAGE_BYTES, _LEAST_BYTES, _MOST_BYTES = 2**20, 8 * 2**20, 256 * 2**20


class SearchDown(BackendDown):
    """No server can respond. The run stops."""


class RemoteRetriever(Retriever):
    """Searches through remote servers. Thread-safe."""

    #: What is called, for error messages.
    endpoint = "POST /retrieve"

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        timeout: float = 30.0,
        retries: int = 8,
        backoff: float = 0.5,
        concurrency: int = 16,
        max_batch: int = 64,
    ) -> None:
        """`urls`: the servers, with or without `/retrieve` at the end.

        `timeout` is per call, and `backoff` is the wait after a server's first failure, both in seconds. A search fails
        after `retries` retries; the default waits for a server for about a minute.
        """
        if timeout <= 0 or retries < 0 or backoff < 0 or concurrency < 1 or max_batch < 1:
            raise StepladderError(
                "expected timeout > 0, retries >= 0, backoff >= 0, concurrency >= 1 and max_batch >= 1; found "
                f"{timeout=}, {retries=}, {backoff=}, {concurrency=}, {max_batch=}"
            )
        self.max_batch, self.concurrency = max_batch, concurrency
        #: Number of retried calls so far, for progress displays.
        self.retries = 0
        self._balancer = LoadBalancer(validate_urls(urls), backoff)
        for url in self._balancer.urls:
            reveal(url)  # an error now if its password is missing
        self._max_retries, self._timeout = retries, timeout
        self._reached = False
        self._max_queries, self._max_characters = max_batch, MAX_QUERY_CHARACTERS
        self._closed = threading.Event()
        self._client = httpx2.Client(
            headers={"content-type": "application/json", **PLAIN}
            | ({"authorization": f"Bearer {validate_token(token)}"} if token is not None else {}),
            timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency),
            trust_env=False,
            event_hooks={"response": [lambda reply: limit_reply(reply, reply.request.extensions["limit"], timeout)]},
        )

    def __repr__(self) -> str:
        return f"RemoteRetriever({self._balancer.urls!r})"

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages, best first; with scores, if the server returns them."""
        check_search(queries, k)
        found: list[tuple[Passage, ...]] = []
        while len(found) < len(queries):
            batch = [query[: self._max_characters] for query in queries[len(found) : len(found) + self._max_queries]]
            host, reply = self._call("POST", "/retrieve", write_request(batch, k), len(batch) * k)
            if reply.status_code == HTTPStatus.UNPROCESSABLE_ENTITY and self._adopt_limits():
                continue
            if reply.status_code != HTTPStatus.OK:
                raise self._error(host, reply)
            try:
                found += read_reply(reply.content, len(batch), k)
            except BadReply as error:
                raise BadReply(f"{host.url}/retrieve: {error}") from error
        return found

    def _adopt_limits(self) -> bool:
        """Adopt the server's limits; returns whether they are lower than before."""
        try:
            limits = (self.info() or {}).get("limits")
        except StepladderError:  # the rejected request is the error to report, not the missing limits
            return False
        limits = limits if isinstance(limits, dict) else {}
        before = self._max_queries, self._max_characters
        server = (limits.get("max_queries"), limits.get("max_characters"))
        self._max_queries, self._max_characters = (
            min(ours, theirs) if isinstance(theirs, int) and theirs > 0 else ours
            for ours, theirs in zip(before, server)
        )
        return (self._max_queries, self._max_characters) != before

    def info(self) -> dict[str, Any] | None:
        """The server's information about its index and limits; None if it has none, such as Search-R1's server."""
        host, reply = self._call("GET", "/info")
        if reply.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return None
        if reply.status_code != HTTPStatus.OK:
            raise self._error(host, reply)
        try:
            info = json.loads(reply.content)
        except (ValueError, RecursionError) as error:
            raise BadReply(f"{host.url}/info: the reply is not JSON: {error}") from error
        return info if isinstance(info, dict) else None

    def close(self) -> None:
        """Close the connections and stop retrying."""
        self._closed.set()
        self._client.close()

    # --- Calls ------------------------------------------------------------------------------------------

    def _call(self, method: str, path: str, body: bytes = b"", passages: int = 0) -> tuple[Host, httpx2.Response]:
        """The first reply that is not worth a retry, and its server. `passages`: the most that it may contain."""
        limit = {"limit": min(max(passages * _PASSAGE_BYTES, _LEAST_BYTES), _MOST_BYTES)}
        attempts = 0
        while True:
            host = self._acquire_host()
            try:
                reply = self._client.request(method, reveal(host.url) + path, content=body, extensions=limit)
            except LongReply as error:
                raise BadReply(f"{host.url}{path}: {error}") from error
            except httpx2.TransportError as error:
                problem, headers = self._describe(error), {}
            else:
                self._reached = True
                if reply.status_code not in _RETRYABLE:
                    self._balancer.succeeded(host)
                    return host, reply
                problem, headers = f"{reply.status_code}: {_message(reply)}", dict(reply.headers)
            finally:
                self._balancer.release(host)
            attempts += 1
            retryable = self._balancer.failed(host, problem, headers)
            first_attempts = max(FIRST_ATTEMPTS, len(self._balancer.urls))
            if not retryable or attempts > (
                self._max_retries if self._reached else min(self._max_retries, first_attempts - 1)
            ):
                problems = "; ".join(f"{url}: {problem}" for url, problem in self._balancer.problems())
                raise SearchDown(
                    f"the search failed after {attempts} attempts: {problems}. Start the servers (stepladder serve "
                    "INDEX), or correct their URLs."
                )
            self.retries += 1

    def _acquire_host(self) -> Host:
        """The next server to call; waits while all are in backoff."""
        while not self._closed.is_set():
            host, seconds = self._balancer.acquire()
            if host is not None:
                return host
            self._closed.wait(seconds)
        raise StepladderError(f"{self!r} is closed; create a new one")

    # --- Errors -----------------------------------------------------------------------------------------

    def _describe(self, error: httpx2.TransportError) -> str:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return f"no connection ({error})"
        if isinstance(error, httpx2.TimeoutException):
            return f"no reply within {self._timeout:g} s"
        return f"the connection broke ({type(error).__name__}: {error})"

    def _error(self, host: Host, reply: httpx2.Response) -> StepladderError:
        status, message = reply.status_code, _message(reply)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            advice = withheld(TOKEN_VARIABLE, host.url) or " Use the one the server was started with."
            return SearchDown(f"{host.url} rejected the token ({status}: {message}).{advice}")
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) or reply.is_redirect:
            return SearchDown(
                f"{host.url} has no {self.endpoint} ({status}: {message}). Is it the URL of a search server?"
            )
        return StepladderError(f"{host.url} replied {status}: {message}")


def _message(reply: httpx2.Response) -> str:
    """The server's error message."""
    try:
        body = json.loads(reply.content)
        names = [name for name in ("detail", "error") if isinstance(body, dict) and name in body]
        message = body[names[0]] if names else body
    except (ValueError, RecursionError):
        message = reply.text
    return (message if isinstance(message, str) else json.dumps(message))[:500] or "no message"
