"""The front of the search server: every request passes it, is counted, let in or sent away, and answered.

In: a table of endpoints, each of which makes a `Reply` of a request. Out: an ASGI application. There is no framework
between it and the HTTP server because every request would pay for it. Whatever happens inside an endpoint, the answer
is JSON: neither a stack trace nor a page of HTML reaches a client.
"""

import asyncio
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from stepladder.retrieval.serving import Metrics, SearchQueue

log = logging.getLogger(__name__)

#: What an ASGI server tells of a request, and how it is listened and spoken to.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whole."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


class Refused(Exception):
    """A request that ends here, and with what reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What answers at one path."""

    method: str
    answer: Callable[[Receive], Awaitable[Reply]]
    #: Whether it answers without the token.
    public: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """With GET goes HEAD: the HTTP server leaves the body out."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


@dataclass(slots=True)
class Traffic:
    """What the server needs to know to end well."""

    draining: bool = False
    under_way: int = 0


class Gate:
    """The application. The queue searches as long as it lives."""

    def __init__(
        self, endpoints: Mapping[str, Endpoint], queue: SearchQueue, metrics: Metrics, token: str | None
    ) -> None:
        self.traffic = Traffic()
        self._endpoints, self._queue, self._metrics = endpoints, queue, metrics
        self._expected = f"bearer {token}".encode() if token else None
        ours = ", ".join(f"{endpoint.method} {path}" for path, endpoint in endpoints.items())
        self._there_is = f"this server has {ours}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        began, path = perf_counter(), scope["path"]
        self.traffic.under_way += 1
        status = 0
        try:
            reply = await self._answer(scope, receive)
            status = reply.status
            length = b"%d" % len(reply.body)
            headers = [(b"content-type", reply.content_type), (b"content-length", length), *reply.headers]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": reply.body})
        finally:
            self.traffic.under_way -= 1
            self._metrics.answered(status)
            if path == "/retrieve":
                self._metrics.seconds.observe(perf_counter() - began)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # the server starts
        self._queue.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()  # the server ends
        self._queue.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive) -> Reply:
        try:
            return await self._let_in(scope).answer(receive)
        except Refused as refused:
            return refused.reply
        except asyncio.CancelledError:  # the time to drain is over, and with it this task
            return _ENDING
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return problem(500, "the server failed; its log says why")

    def _let_in(self, scope: Scope) -> Endpoint:
        """The endpoint that is asked for."""
        method, path = scope["method"], scope["path"]
        endpoint = self._endpoints.get(path)
        if self.traffic.draining:
            raise Refused(_ENDING)
        if self._expected is not None and not (endpoint and endpoint.public):
            self._check_token(scope)
        if endpoint is None:
            raise Refused(problem(404, f"no {method} {path} here: {self._there_is}"))
        if method not in endpoint.methods:
            allow = {"allow": ", ".join(endpoint.methods)}
            raise Refused(problem(405, f"no {method} {path} here: {self._there_is}", allow))
        return endpoint

    def _check_token(self, scope: Scope) -> None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if self._expected and hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected):
            return
        found = "the token is wrong" if given else "a token is needed"
        detail = f"{found}: send the header `Authorization: Bearer TOKEN`"
        raise Refused(problem(401, detail, {"www-authenticate": "Bearer"}))


def told(content: object) -> Reply:
    """Plain data, as a good answer."""
    return Reply(200, json.dumps(content).encode())


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Reply:
    """What is wrong, in the shape that clients of FastAPI's servers expect."""
    fields = tuple((name.encode(), value.encode()) for name, value in (headers or {}).items())
    return Reply(status, json.dumps({"detail": detail}).encode(), fields)


#: For requests that come, or are still there, when the server ends.
_ENDING = Reply(
    503,
    json.dumps({"status": "draining", "detail": "the server is ending: ask another, or try again"}).encode(),
    ((b"retry-after", b"1"), (b"connection", b"close")),
)
