"""Search by HTTP: one or several servers of Search-R1's protocol, as one retriever.

In: URLs of servers (`stepladder serve`, Search-R1's, ProRAG's) that hold the same index, and queries. Out: passages.

Calls are spread over the servers: the least busy comes next. A server that does not answer, or says that it is busy or
ending, rests for as long as it asks for, or else for longer each time it fails, and its calls go to the others; a run
survives the restart of a server. When nothing answers any more, `SearchDown` tells which servers failed and how, and
ends the run.

    with closing(RemoteRetriever(["http://node1:8000", "http://node2:8000"])) as retriever:
        (found,) = retriever.search(["Who designed Orm Tower?"], k=3)

Queries are cut at 8,192 characters, or where the server's limit is.
Proxies of the environment are not used: search servers are near.
"""

import json
import threading
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import httpx2

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.io.auth_token import validate_token
from stepladder.core.trace import Passage
from stepladder.retrieval.base import Retriever, check_search
from stepladder.retrieval.remote.limits import MAX_QUERY_CHARACTERS
from stepladder.retrieval.remote.load_balancer import Host, LoadBalancer, validate_urls
from stepladder.retrieval.remote.protocol import BadReply, read_reply, write_request

#: Tries to reach servers none of which has ever answered: they are more likely absent than busy.
FIRST_ATTEMPTS = 3
#: Seconds to connect; a server that is up connects at once, however busy it is.
_CONNECT_SECONDS = 5.0
#: Answers that another try, or another server, may better.
_PASSING = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}


class SearchDown(BackendDown):
    """No server can answer, whatever is asked. The run stops."""


class RemoteRetriever(Retriever):
    """Search by servers. Threads may share one."""

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
        """Name the servers, with or without `/retrieve` at the end.

        `timeout` bounds one call, and `backoff` is how long a server rests when it fails first, both in seconds.
        A search is given up after `retries` more tries; the default bears with a server for about a minute.
        """
        if timeout <= 0 or retries < 0 or backoff < 0 or concurrency < 1 or max_batch < 1:
            raise StepladderError(
                "expected timeout > 0, retries >= 0, backoff >= 0, concurrency >= 1 and max_batch >= 1; found "
                f"{timeout=}, {retries=}, {backoff=}, {concurrency=}, {max_batch=}"
            )
        self.max_batch, self.concurrency = max_batch, concurrency
        #: Calls repeated so far, for whoever shows progress.
        self.retries = 0
        self._hosts = LoadBalancer(validate_urls(urls), backoff)
        self._max_retries, self._timeout = retries, timeout
        self._reached = False
        self._most_queries, self._most_characters = max_batch, MAX_QUERY_CHARACTERS
        self._closed = threading.Event()
        self._client = httpx2.Client(
            headers={"content-type": "application/json"}
            | ({"authorization": f"Bearer {validate_token(token)}"} if token is not None else {}),
            timeout=httpx2.Timeout(timeout, connect=min(timeout, _CONNECT_SECONDS)),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency),
            trust_env=False,
        )

    def __repr__(self) -> str:
        return f"RemoteRetriever({self._hosts.urls!r})"

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        """For each query, in order, up to k passages, best first; with scores, if the server gives any."""
        check_search(queries, k)
        found: list[tuple[Passage, ...]] = []
        while len(found) < len(queries):
            batch = [query[: self._most_characters] for query in queries[len(found) : len(found) + self._most_queries]]
            host, reply = self._call("POST", "/retrieve", write_request(batch, k))
            if reply.status_code == HTTPStatus.UNPROCESSABLE_ENTITY and self._learn_limits():
                continue
            if reply.status_code != HTTPStatus.OK:
                raise self._refused(host, reply)
            try:
                found += read_reply(reply.content, len(batch))
            except BadReply as error:
                raise BadReply(f"{host.url}/retrieve: {error}") from error
        return found

    def _learn_limits(self) -> bool:
        """Keep to what the server takes from now on; whether that is less than before."""
        try:
            told = (self.info() or {}).get("limits")
        except StepladderError:  # what it refused is told; that it does not tell its limits is no other error
            return False
        limits = told if isinstance(told, dict) else {}
        before = self._most_queries, self._most_characters
        most = (limits.get("max_queries"), limits.get("max_characters"))
        self._most_queries, self._most_characters = (
            min(ours, theirs) if isinstance(theirs, int) and theirs > 0 else ours for ours, theirs in zip(before, most)
        )
        return (self._most_queries, self._most_characters) != before

    def info(self) -> dict[str, Any] | None:
        """What a server tells about its index and limits; None where it does not, as Search-R1's."""
        host, reply = self._call("GET", "/info")
        if reply.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            return None
        if reply.status_code != HTTPStatus.OK:
            raise self._refused(host, reply)
        try:
            told = json.loads(reply.content)
        except ValueError as error:
            raise BadReply(f"{host.url}/info: the answer is not JSON: {error}") from error
        return told if isinstance(told, dict) else None

    def close(self) -> None:
        """Close the connections, and give up what waits for another try."""
        self._closed.set()
        self._client.close()

    # --- Calls ------------------------------------------------------------------------------------------

    def _call(self, method: str, path: str, body: bytes | None = None) -> tuple[Host, httpx2.Response]:
        """An answer that another try would not better, and whose it is."""
        tries = 0
        while True:
            host = self._free_host()
            try:
                reply = self._client.request(method, host.url + path, content=body)
            except httpx2.TransportError as error:
                problem, headers = self._trouble(error), {}
            else:
                self._reached = True
                if reply.status_code not in _PASSING:
                    self._hosts.answered(host)
                    return host, reply
                problem, headers = f"{reply.status_code}: {_said(reply)}", dict(reply.headers)
            finally:
                self._hosts.leave(host)
            tries += 1
            patience = self._hosts.failed(host, problem, headers)
            first_tries = max(FIRST_ATTEMPTS, len(self._hosts.urls))
            if not patience or tries > (
                self._max_retries if self._reached else min(self._max_retries, first_tries - 1)
            ):
                raise self._down(tries)
            self.retries += 1

    def _free_host(self) -> Host:
        """The next server to ask; waits while all of them rest."""
        while not self._closed.is_set():
            host, rest = self._hosts.take()
            if host is not None:
                return host
            self._closed.wait(rest)
        raise StepladderError(f"{self!r} is closed; make a new one")

    # --- What went wrong --------------------------------------------------------------------------------

    def _trouble(self, error: httpx2.TransportError) -> str:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return f"no connection ({error})"
        if isinstance(error, httpx2.TimeoutException):
            return f"no answer within {self._timeout:g} s"
        return f"the connection broke ({type(error).__name__}: {error})"

    def _down(self, tries: int) -> SearchDown:
        problems = "; ".join(f"{url}: {problem}" for url, problem in self._hosts.problems())
        return SearchDown(
            f"the search failed after {tries} tries: {problems}. Start the servers (stepladder serve INDEX), or "
            "correct their URLs."
        )

    def _refused(self, host: Host, reply: httpx2.Response) -> StepladderError:
        status, said = reply.status_code, _said(reply)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return SearchDown(
                f"{host.url} refused the token ({status}: {said}). Give the one the server was started with."
            )
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) or reply.is_redirect:
            return SearchDown(f"{host.url} has no POST /retrieve ({status}: {said}). Is it the URL of a search server?")
        return StepladderError(f"{host.url} answered {status}: {said}")


def _said(reply: httpx2.Response) -> str:
    """The server's own words."""
    try:
        body = json.loads(reply.content)
        words = body["detail"] if isinstance(body, dict) and "detail" in body else body
    except ValueError:
        words = reply.text
    return (words if isinstance(words, str) else json.dumps(words))[:500] or "no message"
