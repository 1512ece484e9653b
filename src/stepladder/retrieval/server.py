"""A search server: any retriever behind Search-R1's protocol, made for many clients at once.

In: a retriever, limits, and what `/info` shall tell about the index. Out: an application (`make_app`), or a server that
runs until it is asked to end (`serve`).

    POST /retrieve   the search, see wire.py
    GET  /health     {"status": "ok"}, for load balancers; needs no token
    GET  /info       the index, the limits, the version
    GET  /metrics    for Prometheus

Every error is JSON, {"detail": "..."}: 401 without the token, 413 and 422 for what cannot be answered, 429 with
Retry-After when the queue is full, 503 while the server ends. SIGTERM or Ctrl-C lets it answer what is under way first.
"""

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from time import perf_counter
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.types import Receive

from stepladder import __version__
from stepladder.errors import StepladderError
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.gate import Gate, Traffic, answer, problem
from stepladder.retrieval.server_settings import ServerSettings
from stepladder.retrieval.serving import Metrics, QueueFull, SearchQueue, Ticket
from stepladder.retrieval.wire import BadRequest, checked_token, read_request, write_reply

#: Of a body that is too long, so many times the limit is read and thrown away: clients listen when they have spoken.
_PATIENCE = 8
#: Longer than clients keep unused connections, so that none is closed under a request.
_KEEP_ALIVE_SECONDS = 75
_CLIENT_GONE = 499
_THERE_IS = "this server has POST /retrieve and GET /health, /info, /metrics"


def make_app(retriever: Retriever, settings: ServerSettings, info: Mapping[str, object]) -> FastAPI:
    """The server as an application; `info` describes the index. `app.state.traffic` is its `Traffic`."""
    metrics, traffic = Metrics(), Traffic()
    queue = SearchQueue(
        retriever, max_waiting=settings.max_waiting, cache_entries=settings.cache_entries, metrics=metrics
    )
    token = checked_token(settings.token.get_secret_value()) if settings.token else None
    told = {"index": dict(info), "limits": settings.model_dump(exclude={"token"}), "version": __version__}

    async def retrieve(request: Request) -> Response:
        body = await _read_body(request, settings.max_body_bytes)
        asked = read_request(body, settings)
        ticket = queue.ask(asked.queries, asked.k)
        try:
            if ticket.missing and not await _wait(ticket, request.receive):
                return Response(status_code=_CLIENT_GONE)
        finally:
            queue.drop(ticket)
        results = ticket.results
        if results is None:
            return problem(500, "the search failed; the server's log says why")
        return Response(write_reply(results, asked.with_scores), media_type="application/json")

    async def health(_: Request) -> Response:
        return answer(200, {"status": "ok"})

    async def tell(_: Request) -> Response:
        return answer(200, told)

    async def count(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    @asynccontextmanager
    async def searching(_: FastAPI) -> AsyncIterator[None]:
        queue.start()
        yield
        queue.close()

    # The routes of Starlette: FastAPI's would read and check bodies before their length is known.
    app = FastAPI(
        title="Stepladder search",
        openapi_url=None,
        redirect_slashes=False,
        lifespan=searching,
        exception_handlers=_ANSWERS,
    )
    app.add_route("/retrieve", retrieve, methods=["POST"])
    app.add_route("/health", health)
    app.add_route("/info", tell)
    app.add_route("/metrics", count)
    app.add_middleware(Gate, traffic=traffic, metrics=metrics, token=token)
    app.state.traffic = traffic
    return app


async def _read_body(request: Request, limit: int) -> bytes:
    """The body, if it is not longer than the limit."""
    length = 0
    parts: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise HTTPException(_CLIENT_GONE, "the client went away")
        part = message.get("body", b"")
        length += len(part)
        if length <= limit:
            parts.append(part)
        over = not message.get("more_body", False)
        if over and length <= limit:
            return b"".join(parts)
        if over or length > _PATIENCE * limit:
            reason = f"the body is longer than {limit:,} bytes: send fewer queries a request"
            raise HTTPException(413, reason, {"connection": "close"})


async def _wait(ticket: Ticket, receive: Receive) -> bool:
    """Until all is found; False when the client went away before."""
    gone = asyncio.ensure_future(receive())  # after the body, the next that is heard of a client is its end
    try:
        await asyncio.wait((ticket.ready, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
    return ticket.ready.done()


# --- Errors of the endpoints -------------------------------------------------------------------------------


async def _bad_request(_: Request, error: BadRequest) -> Response:
    return problem(422, str(error))


async def _queue_full(_: Request, error: QueueFull) -> Response:
    return problem(429, str(error), {"retry-after": str(error.wait)})


async def _http_problem(request: Request, error: HTTPException) -> Response:
    detail = error.detail
    if error.status_code in (404, 405):
        detail = f"no {request.method} {request.scope['path']} here: {_THERE_IS}"
    return problem(error.status_code, detail, error.headers)


_ANSWERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    BadRequest: _bad_request,
    QueueFull: _queue_full,
    HTTPException: _http_problem,
}


# --- Running ----------------------------------------------------------------------------------------------


class SearchServer(uvicorn.Server):
    """A uvicorn server that ends in good order: it sends new requests away while it answers those under way."""

    def __init__(
        self,
        app: FastAPI,
        drain_seconds: float,
        *,
        access_log: bool = False,
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="on",
            log_level="info" if access_log else "warning",
            access_log=access_log,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._traffic: Traffic = app.state.traffic
        self._drain_seconds = drain_seconds
        self._on_start = on_start

    def drain(self) -> None:
        """Ask the server to end; from any thread."""
        self._traffic.draining = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """A signal: the first drains, the second ends at once. Neither is passed on: this is a good end."""
        self.force_exit = self.should_exit
        self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and say so when requests and signals are heard."""
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests under way, as long as they may take, then end as uvicorn does."""
        deadline = perf_counter() + self._drain_seconds
        while self._traffic.under_way and perf_counter() < deadline and not self.force_exit:
            await asyncio.sleep(0.02)
        self.config.timeout_graceful_shutdown = max(1, math.ceil(deadline - perf_counter()))
        await super().shutdown(sockets)


def serve(
    retriever: Retriever,
    settings: ServerSettings,
    info: Mapping[str, object],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    insecure: bool = False,
    access_log: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `announce` is called with the URL when clients can connect.

    Other addresses than this machine's own need a token, unless `insecure` says that everyone may search. Port 0
    takes a free one.
    """
    if settings.token is None and not insecure and not _is_loopback(host):
        raise StepladderError(
            f"{host} can be reached from other machines, and no token was given: set STEPLADDER_TOKEN, or say insecure "
            "(--insecure) when everyone who can connect may search"
        )
    app = make_app(retriever, settings, info)
    listener = listen(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    server = SearchServer(app, settings.drain_seconds, access_log=access_log, on_start=lambda: announce(url))
    server.run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections; port 0 takes a free one."""
    # The protocol is named because asyncio sends small packets at once only where it sees TCP.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise StepladderError(
            f"cannot listen on {host}, port {port}: {error}. Choose another --port or --host"
        ) from error
    return listener
