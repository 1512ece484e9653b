"""The front of a server: every request passes it, is counted, let in or sent away, and answered.

In: a table of endpoints, each of which makes an answer of a request. Out: an ASGI application. There is no framework
between it and the HTTP server because every request would pay for it. Whatever happens inside an endpoint, the answer
is JSON: neither a stack trace nor a page of HTML reaches a client.
"""

import asyncio
import hmac
import json
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from stepladder.serve.http.server_metrics import Metrics

log = logging.getLogger(__name__)

#: What an ASGI server tells of a request, and how it is listened and spoken to.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer, whole."""

    status: int
    body: bytes
    headers: Headers = ()
    content_type: bytes = b"application/json"


class StreamingResponse(Protocol):
    """An answer that is not there as a whole."""

    async def speak(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Give the answer; returns its status."""


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer that is sent piece by piece, as the pieces are made. Whatever goes wrong, `parts` say it themselves."""

    parts: AsyncGenerator[bytes, None]
    content_type: bytes
    headers: Headers = ()

    async def speak(self, scope: Scope, receive: Receive, send: Send) -> int:  # noqa: ARG002
        """Send what comes; what makes the parts is closed in the end, also when the client is gone."""
        headers = [(b"content-type", self.content_type), *self.headers]
        async with aclosing(self.parts) as parts:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return 200


class HTTPError(Exception):
    """A request that ends here, and why. The gate puts it into the shape of its server's errors."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


#: Nobody hears it, but it is counted.
CLIENT_DISCONNECTED = Response(499, b"")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What answers at one path."""

    method: str
    answer: Callable[[Receive], Awaitable[Response | StreamingResponse]]
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


def plainly(status: int, detail: str) -> dict[str, object]:  # noqa: ARG001
    """What is wrong, in the shape that clients of FastAPI's servers expect."""
    return {"detail": detail}


class HTTPApp:
    """The application."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        metrics: Metrics,
        *,
        life: Callable[[], AbstractAsyncContextManager[None]],
        timed: str,
        token: str | None = None,
        local: bool = False,
        shape: Callable[[int, str], dict[str, object]] = plainly,
    ) -> None:
        """What works behind the endpoints is entered (`life`) when the server starts, and left when it ends.

        Requests to the path `timed` are timed. `shape` makes the JSON of an error from its status and what is wrong.
        `local`: only this machine can connect; where there is no token, web pages that it has open are kept out.
        """
        self.traffic = Traffic()
        self._endpoints, self._metrics, self._life, self._timed, self._shape = endpoints, metrics, life, timed, shape
        self._expected = f"bearer {token}".encode() if token else None
        self._keeps_pages_out = local and token is None
        ours = ", ".join(f"{endpoint.method} {path}" for path, endpoint in endpoints.items())
        self._there_is = f"this server has {ours}"
        #: For requests that come, or are still there, when the server ends.
        ending = {"status": "draining", **shape(503, "the server is ending: ask another, or try again")}
        headers = ((b"retry-after", b"1"), (b"connection", b"close"))
        self._ending = Response(503, json.dumps(ending).encode(), headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._live(receive, send)
        began, path = perf_counter(), scope["path"]
        self.traffic.under_way += 1
        status = 0
        try:
            reply = await self._answer(scope, receive)
            if isinstance(reply, Response):
                status = reply.status
                length = b"%d" % len(reply.body)
                headers = [(b"content-type", reply.content_type), (b"content-length", length), *reply.headers]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": reply.body})
            else:
                status = await reply.speak(scope, receive, send)
        finally:
            self.traffic.under_way -= 1
            self._metrics.answered(status)
            if path == self._timed:
                self._metrics.seconds.observe(perf_counter() - began)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()  # the server starts
        async with self._life():
            await send({"type": "lifespan.startup.complete"})
            await receive()  # the server ends
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive) -> Response | StreamingResponse:
        if self.traffic.draining:
            return self._ending
        try:
            return await self._let_in(scope).answer(receive)
        except HTTPError as refused:
            return self._problem(refused.status, refused.detail, refused.headers)
        except asyncio.CancelledError:  # the time to drain is over, and with it this task
            return self._ending
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return self._problem(500, "the server failed; its log says why", {})

    def _let_in(self, scope: Scope) -> Endpoint:
        """The endpoint that is asked for."""
        method, path = scope["method"], scope["path"]
        endpoint = self._endpoints.get(path)
        if not (endpoint and endpoint.public):
            if self._expected is not None:
                self._check_token(scope)
            elif self._keeps_pages_out:
                _check_is_local(scope)
        if endpoint is None:
            raise HTTPError(404, f"no {method} {path} here: {self._there_is}")
        if method not in endpoint.methods:
            allow = {"allow": ", ".join(endpoint.methods)}
            raise HTTPError(405, f"no {method} {path} here: {self._there_is}", allow)
        return endpoint

    def _check_token(self, scope: Scope) -> None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if self._expected and hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected):
            return
        found = "the token is wrong" if given else "a token is needed"
        raise HTTPError(401, f"{found}: send the header `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"})

    def _problem(self, status: int, detail: str, headers: Mapping[str, str]) -> Response:
        fields = tuple((name.encode(), value.encode()) for name, value in headers.items())
        return Response(status, json.dumps(self._shape(status, detail)).encode(), fields)


def json_response(content: object, status: int = 200) -> Response:
    """Plain data, as an answer."""
    return Response(status, json.dumps(content).encode())


#: Names of this machine, as they stand in the headers Host and Origin, with or without a port.
_THIS_MACHINE = re.compile(rb"(https?://)?(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)


def _check_is_local(scope: Scope) -> None:
    """Refuse what a web page sends, which reaches a server on this machine through its user's browser.

    Such a request names the page (Origin), or the name of the page's own site, pointed at this machine (Host).
    """
    for name, value in scope["headers"]:
        if name in (b"host", b"origin") and not _THIS_MACHINE.fullmatch(value):
            what = value.decode("latin-1")[:100]
            raise HTTPError(
                421,
                f"this server answers to this machine alone, and the request's {name.decode()} is {what!r}: ask it at "
                "localhost, or give the server a token and send that",
            )
