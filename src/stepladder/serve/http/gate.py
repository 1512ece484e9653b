"""The gate in front of a server's API: who may ask, how much a client may send and how long it may take.

In: ASGI requests. Out: the admitted ones, each with its whole body in one message, for the API; an error response to
all others. The gate counts and times every request, and turns new ones away while the server shuts down. It is plain
ASGI, so that limits hold on every route, MCP included.
"""

import asyncio
import hmac
import logging
import re
from collections.abc import Callable
from http import HTTPStatus
from time import perf_counter
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from stepladder.core.io.auth_token import validate_token
from stepladder.serve.http.api import PUBLIC_PATH, ServerAPI
from stepladder.serve.http.browser_access import BrowserAccess, check_same_origin
from stepladder.serve.http.http_errors import HTTPError, crashed, shutting_down
from stepladder.serve.http.server_metrics import Metrics
from stepladder.serve.server_configs import HTTPConfig

log = logging.getLogger(__name__)

#: Of a body that is too long, this many times the limit is read and discarded: clients read the response afterwards.
DISCARD_FACTOR = 8
#: Bodies of full length that may be in memory while they are received, of all clients together.
_MAX_BODIES = 32
#: And their bytes, but at least two bodies.
_MAX_RECEIVING = 256 * 2**20
#: Characters of a library's error that are sent.
_ERROR_CHARACTERS = 500
#: Seconds after which the connection of a request is watched: most responses are faster.
_WATCH_AFTER_SECONDS = 1.0
#: Seconds between two lines about refused requests in the log.
_REFUSAL_SECONDS = 1.0
#: Seconds between two checks of what is due.
_TICK = 0.1
#: Names of this machine in the Host and Origin headers, with or without a port.
_LOCALHOST = re.compile(rb"(https?://)?(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE)


class Gate:
    """An ASGI application: an API behind its limits."""

    def __init__(self, api: ServerAPI, config: HTTPConfig, metrics: Metrics, *, local: bool = False) -> None:
        """Requests to the API's main endpoint are timed. `local`: without a token, reject requests of web pages."""
        #: Set at shutdown: new requests are rejected.
        self.draining = False
        self.in_flight = 0
        self.api, self.config, self.metrics = api, config, metrics
        #: Bytes of the bodies that are being received.
        self._receiving = 0
        self._watchdog = _Watchdog()
        self._refused_at = -_REFUSAL_SECONDS
        token = validate_token(config.token.get_secret_value()) if config.token else None
        self._expected_auth = f"bearer {token}".encode() if token else None
        self._checks_origin = local and token is None
        self._browsers = None if api.pages is None else BrowserAccess(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.api(scope, receive, send)
        started, status = perf_counter(), 0
        self.in_flight += 1

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if not status:
                status = message["status"]
            await send(message)

        try:
            await self._respond(scope, receive, send_and_note)
            if not status:
                raise HTTPError(499, "the request ended without a response")
        except Exception as error:
            if not isinstance(error, HTTPError):
                log.exception("%s %s failed", scope["method"], scope["path"])
                error = crashed()
            self._log_refusal(scope, error, started)
            if not status:
                await self.api.error_response(error, scope)(scope, receive, send_and_note)
        except asyncio.CancelledError:  # the drain time is over
            if not status:
                await self.api.error_response(shutting_down())(scope, receive, send_and_note)
        finally:
            self.in_flight -= 1
            self.metrics.count_request(status)
            if scope["path"] == self.api.main_path:
                self.metrics.seconds.observe(perf_counter() - started)

    def _log_refusal(self, scope: Scope, error: HTTPError, now: float) -> None:
        """Log why a request to the main endpoint was refused: some clients do not look at errors."""
        is_refusal = error.status_code in (413, 422, 429) and scope["path"] == self.api.main_path
        if is_refusal and now - self._refused_at >= _REFUSAL_SECONDS:
            self._refused_at = now
            log.warning("refused a request to %s: %d: %s", self.api.main_path, error.status_code, error.detail)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.draining:
            raise shutting_down()
        method, path = scope["method"], scope["path"]
        if not self._is_public(path) or method not in ("GET", "HEAD"):
            browsers = self._browsers if self.api.pages is not None and self.api.pages.owns(path) else None
            if browsers is not None:
                check_same_origin(scope)  # before the token: a cookie is sent whichever page makes the request
                if (response := browsers.take_token(scope)) is not None:
                    return await response(scope, receive, send)
            if self._expected_auth is not None:
                if browsers is None or not browsers.is_known(scope):
                    _check_token(scope, self._expected_auth)
            elif self._checks_origin:
                _check_local(scope)
        body = await self._read_body(receive)
        if path == self.api.main_path and method == "POST":
            return await self._call_main(body, scope, receive, send)
        message: Message | None = {"type": "http.request", "body": body, "more_body": False}

        async def receive_body_first() -> Message:
            nonlocal message
            if message is None:
                return await receive()
            first, message = message, None
            return first

        if method == "HEAD":  # as GET; the HTTP server drops the body
            scope = {**scope, "method": "GET"}
        await self.api(scope, receive_body_first, self._with_json_errors(scope, receive, send))

    def _is_public(self, path: str) -> bool:
        """Whether a path can be read without the token."""
        return path == PUBLIC_PATH or (self.api.pages is not None and path.startswith(self.api.pages.public_prefix))

    def _with_json_errors(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Send errors of libraries, which may be text or empty, as JSON. Errors of pages are HTML."""
        status, text = 0, b""
        kept = (b"application/json",) if self.api.pages is None else (b"application/json", b"text/html")

        async def send_json(message: Message) -> None:
            nonlocal status, text
            if message["type"] == "http.response.start" and message["status"] >= HTTPStatus.BAD_REQUEST:
                headers = dict(message.get("headers", ()))
                if not headers.get(b"content-type", b"").startswith(kept):
                    status = message["status"]
                    return
            if not status:
                return await send(message)
            text += message.get("body", b"")
            if not message.get("more_body", False):
                detail = text.decode("utf-8", "replace")[:_ERROR_CHARACTERS] or HTTPStatus(status).phrase
                await self.api.error_response(HTTPError(status, detail))(scope, receive, send)

        return send_json

    async def _call_main(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the main endpoint, and cancel it when the client disconnects."""
        task, disconnect = _current_task(), None

        def watch() -> None:
            nonlocal disconnect
            disconnect = asyncio.ensure_future(receive())  # after the body, the next message is the disconnect
            disconnect.add_done_callback(lambda done: done.cancelled() or task.cancel())

        self._watchdog.set(task, _WATCH_AFTER_SECONDS, watch)
        try:
            response = await self.api.call_main(body)
            await response(scope, receive, send)
        except asyncio.CancelledError:
            if disconnect is None or not disconnect.done():
                raise
            task.uncancel()
            raise HTTPError(499, "the client disconnected") from None
        finally:
            self._watchdog.clear(task)
            if disconnect is not None:
                disconnect.cancel()

    async def _read_body(self, receive: Receive) -> bytes:
        """The body of a request, within its limits of time and size."""
        limit, seconds = self.config.max_body_bytes, self.config.body_seconds
        parts: list[bytes] = []
        length, task = 0, _current_task()
        self._watchdog.set(task, seconds, task.cancel)
        try:
            while length <= DISCARD_FACTOR * limit:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HTTPError(499, "the client disconnected")
                part = message.get("body", b"")
                length += len(part)
                if length <= limit:
                    parts.append(part)
                    self._receiving += len(part)
                    if self._receiving > min(_MAX_BODIES * limit, max(_MAX_RECEIVING, 2 * limit)):
                        headers = {"retry-after": "1", "connection": "close"}
                        raise HTTPError(503, "too many requests are being received: try again in 1 s", headers)
                if not message.get("more_body", False):
                    break
        except asyncio.CancelledError:
            if self._watchdog.clear(task):  # cancelled by somebody else
                raise
            task.uncancel()
            detail = f"the body was not received within {seconds:g} s"
            raise HTTPError(408, detail, {"connection": "close"}) from None
        finally:
            self._watchdog.clear(task)
            self._receiving -= sum(map(len, parts))
        if length > limit:
            raise HTTPError(413, f"the body is longer than {limit:,} bytes: send less at once", {"connection": "close"})
        return b"".join(parts)


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def _check_token(scope: Scope, expected: bytes) -> None:
    given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
    scheme, _, token = given.partition(b" ")
    if not hmac.compare_digest(scheme.lower() + b" " + token.strip(), expected):
        problem = "invalid token" if given else "missing token"
        raise HTTPError(401, f"{problem}: send `Authorization: Bearer TOKEN`", {"www-authenticate": "Bearer"})


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


class _Watchdog:
    """Calls actions when their time has come, unless they are cleared before.

    Nearly all are cleared, so one timer for all of them checks what is due: setting a deadline is an entry in a
    dictionary, a tenth of the cost of a timer of its own.
    """

    def __init__(self) -> None:
        self._due: dict[object, tuple[float, Callable[[], object]]] = {}
        self._ticking = False

    def set(self, key: object, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` in so many seconds, on the running event loop."""
        self._due[key] = perf_counter() + seconds, action
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(_TICK, self._tick)

    def clear(self, key: object) -> bool:
        """Whether the action was still to come; now it is not called any more."""
        return self._due.pop(key, None) is not None

    def _tick(self) -> None:
        now = perf_counter()
        for key, (due, action) in list(self._due.items()):
            if due <= now:
                del self._due[key]
                action()
        self._ticking = bool(self._due)
        if self._ticking:
            asyncio.get_running_loop().call_later(_TICK, self._tick)
