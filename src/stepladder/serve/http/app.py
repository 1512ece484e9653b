"""The HTTP application: routing, authentication, error responses and request counts.

In: a table of endpoints, each with a handler that turns a request into a response. Out: an ASGI application. There is
no web framework, because every request would pay for it. All errors are JSON: clients never get a stack trace or HTML.
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

#: The scope, receive and send of the ASGI protocol.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response."""

    status: int
    body: bytes
    headers: Headers = ()
    content_type: bytes = b"application/json"


class StreamingResponse(Protocol):
    """A response that is sent by itself, in several parts."""

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Send the response; returns its status."""


@dataclass(frozen=True, slots=True)
class EventStream:
    """A response sent part by part, as the parts are produced. `parts` reports errors itself."""

    parts: AsyncGenerator[bytes, None]
    content_type: bytes
    headers: Headers = ()

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> int:  # noqa: ARG002
        """Send the parts. Their generator is closed at the end, also when the client has disconnected."""
        headers = [(b"content-type", self.content_type), *self.headers]
        async with aclosing(self.parts) as parts:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async for part in parts:
                await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return 200


class HTTPError(Exception):
    """Ends a request with an error status. The app formats it with the server's `error_body`."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


#: Nobody receives it, but it is counted.
CLIENT_DISCONNECTED = Response(499, b"")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The handler of a path."""

    method: str
    handle: Callable[[Receive], Awaitable[Response | StreamingResponse]]
    #: Whether it needs no token.
    public: bool = False

    @property
    def methods(self) -> tuple[str, ...]:
        """GET includes HEAD: the HTTP server drops the body."""
        return ("GET", "HEAD") if self.method == "GET" else (self.method,)


@dataclass(slots=True)
class Traffic:
    """State for graceful shutdown."""

    draining: bool = False
    in_flight: int = 0


def detail_body(status: int, detail: str) -> dict[str, object]:  # noqa: ARG001
    """The JSON of an error, in FastAPI's format."""
    return {"detail": detail}


class HTTPApp:
    """The ASGI application."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        metrics: Metrics,
        *,
        lifespan: Callable[[], AbstractAsyncContextManager[None]],
        timed_path: str,
        token: str | None = None,
        local: bool = False,
        error_body: Callable[[int, str], dict[str, object]] = detail_body,
    ) -> None:
        """`lifespan` is entered when the server starts and left when it stops.

        Requests to `timed_path` are timed. `error_body` makes the JSON of an error from its status and detail. `local`:
        only this machine can connect; without a token, requests from web pages in its browsers are rejected.
        """
        self.traffic = Traffic()
        self._endpoints, self._metrics, self._lifespan = endpoints, metrics, lifespan
        self._timed_path, self._error_body = timed_path, error_body
        self._expected_auth = f"bearer {token}".encode() if token else None
        self._checks_origin = local and token is None
        listing = ", ".join(f"{endpoint.method} {path}" for path, endpoint in endpoints.items())
        self._endpoint_list = f"this server has {listing}"
        #: The response to requests that arrive, or are unfinished, during shutdown.
        body = {"status": "draining", **error_body(503, "the server is shutting down: try another one, or later")}
        headers = ((b"retry-after", b"1"), (b"connection", b"close"))
        self._draining_response = Response(503, json.dumps(body).encode(), headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._run_lifespan(receive, send)
        started, path = perf_counter(), scope["path"]
        self.traffic.in_flight += 1
        status = 0
        try:
            response = await self._dispatch(scope, receive)
            if isinstance(response, Response):
                status = response.status
                length = b"%d" % len(response.body)
                headers = [(b"content-type", response.content_type), (b"content-length", length), *response.headers]
                await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": response.body})
            else:
                status = await response.respond(scope, receive, send)
        finally:
            self.traffic.in_flight -= 1
            self._metrics.count_request(status)
            if path == self._timed_path:
                self._metrics.seconds.observe(perf_counter() - started)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        await receive()  # startup
        async with self._lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()  # shutdown
        await send({"type": "lifespan.shutdown.complete"})

    async def _dispatch(self, scope: Scope, receive: Receive) -> Response | StreamingResponse:
        if self.traffic.draining:
            return self._draining_response
        try:
            return await self._route(scope).handle(receive)
        except HTTPError as error:
            return self._error_response(error.status, error.detail, error.headers)
        except asyncio.CancelledError:  # the drain time is over
            return self._draining_response
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            return self._error_response(500, "internal server error; see the server's log", {})

    def _route(self, scope: Scope) -> Endpoint:
        """The endpoint of a request."""
        method, path = scope["method"], scope["path"]
        endpoint = self._endpoints.get(path)
        if not (endpoint and endpoint.public):
            if self._expected_auth is not None:
                self._check_token(scope)
            elif self._checks_origin:
                _check_local(scope)
        if endpoint is None:
            raise HTTPError(404, f"{method} {path} does not exist: {self._endpoint_list}")
        if method not in endpoint.methods:
            allow = {"allow": ", ".join(endpoint.methods)}
            raise HTTPError(405, f"{method} {path} is not allowed: {self._endpoint_list}", allow)
        return endpoint

    def _check_token(self, scope: Scope) -> None:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = given.partition(b" ")
        if self._expected_auth and hmac.compare_digest(scheme.lower() + b" " + token.strip(), self._expected_auth):
            return
        problem = "invalid token" if given else "missing token"
        raise HTTPError(401, f"{problem}: send `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"})

    def _error_response(self, status: int, detail: str, headers: Mapping[str, str]) -> Response:
        encoded = tuple((name.encode(), value.encode()) for name, value in headers.items())
        return Response(status, json.dumps(self._error_body(status, detail)).encode(), encoded)


def json_response(content: object, status: int = 200) -> Response:
    """Plain data as a JSON response."""
    return Response(status, json.dumps(content).encode())


#: Names of this machine in the Host and Origin headers, with or without a port.
_LOCALHOST = re.compile(rb"(https?://)?(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)


def _check_local(scope: Scope) -> None:
    """Reject requests of web pages, which reach a local server through the user's browser.

    They name the page (Origin), or the page's own host name that was pointed at this machine (Host).
    """
    for name, value in scope["headers"]:
        if name in (b"host", b"origin") and not _LOCALHOST.fullmatch(value):
            shown = value.decode("latin-1")[:100]
            raise HTTPError(
                421,
                f"this server only accepts local requests, and the {name.decode()} header is {shown!r}: use localhost, "
                "or start the server with a token and send it",
            )
