"""A search server: any retriever behind Search-R1's protocol, made for many clients at once.

In: a retriever, limits, and what `/info` shall tell about the index. Out: an application (`make_app`), or a server that
runs until it is asked to end (`serve`).

    POST /retrieve       the search, see wire.py
    GET  /health         {"status": "ok"}, for load balancers; needs no token
    GET  /info           the index, the limits, the version
    GET  /metrics        for Prometheus
    GET  /openapi.json   all of this as a schema, with the limits of this server

Every error is JSON, {"detail": "..."}: 401 without the token, 408 for a body that does not come, 413 and 422 for what
cannot be answered, 429 with Retry-After when the queue is full, 503 while the server ends. SIGTERM or Ctrl-C lets it
answer what is under way first.
"""

import asyncio
import math
import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from time import perf_counter
from types import FrameType

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from stepladder import __version__
from stepladder.errors import StepladderError
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.gate import Endpoint, Gate, Receive, Reply, problem, told
from stepladder.retrieval.openapi import openapi_schema
from stepladder.retrieval.patience import CLIENT_GONE, Watch, read_body
from stepladder.retrieval.server_settings import ServerSettings
from stepladder.retrieval.serving import Metrics, QueueFull, SearchQueue
from stepladder.retrieval.wire import BadRequest, checked_token, read_request, write_reply

#: Longer than clients keep unused connections, so that none is closed under a request.
_KEEP_ALIVE_SECONDS = 75
#: uvloop takes one connection a turn from each socket it listens on. A busy server's turns are long, and hundreds of
#: clients would wait for seconds to be heard at all: it listens on so many copies of the socket.
_ACCEPTED_A_TURN = 16


def make_app(retriever: Retriever, settings: ServerSettings, info: Mapping[str, object]) -> Gate:
    """The server as an ASGI application; `info` describes the index."""
    metrics = Metrics()
    queue = SearchQueue(
        retriever,
        max_waiting=settings.max_waiting,
        cache_entries=settings.cache_entries,
        cache_bytes=settings.cache_bytes,
        metrics=metrics,
    )
    token = checked_token(settings.token.get_secret_value()) if settings.token else None
    about = told({"index": dict(info), "limits": settings.model_dump(exclude={"token"}), "version": __version__})
    schema = told(openapi_schema(settings))

    async def retrieve(receive: Receive) -> Reply:
        body = await read_body(receive, settings)
        try:
            asked = read_request(body, settings)
            ticket = queue.ask(asked.queries, asked.k)
        except BadRequest as error:
            return problem(422, str(error))
        except QueueFull as error:
            return problem(429, str(error), {"retry-after": str(error.wait)})
        if ticket.missing:
            try:
                with Watch(ticket, receive):
                    if not await ticket.ready:
                        return CLIENT_GONE
            finally:
                queue.drop(ticket)
        results = ticket.results
        if results is None:
            return problem(500, "the search failed; the server's log says why")
        return Reply(200, write_reply(results, asked.with_scores))

    async def health(_: Receive) -> Reply:
        return told({"status": "ok"})

    async def tell(_: Receive) -> Reply:
        return about

    async def count(_: Receive) -> Reply:
        return Reply(200, generate_latest(metrics.registry), content_type=CONTENT_TYPE_LATEST.encode())

    async def describe(_: Receive) -> Reply:
        return schema

    endpoints = {
        "/retrieve": Endpoint("POST", retrieve),
        "/health": Endpoint("GET", health, public=True),
        "/info": Endpoint("GET", tell),
        "/metrics": Endpoint("GET", count),
        "/openapi.json": Endpoint("GET", describe),
    }
    return Gate(endpoints, queue, metrics, token)


# --- Running ----------------------------------------------------------------------------------------------


class SearchServer(uvicorn.Server):
    """A uvicorn server that ends in good order: it sends new requests away while it answers those under way."""

    def __init__(
        self,
        app: Gate,
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
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        )
        super().__init__(config)
        self._traffic = app.traffic
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
        self._copies = [each.dup() for each in sockets or [] for _ in range(_ACCEPTED_A_TURN - 1)]
        await super().startup([*(sockets or []), *self._copies])
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the requests under way, as long as they may take, then end as uvicorn does."""
        deadline = perf_counter() + self._drain_seconds
        while self._traffic.under_way and perf_counter() < deadline and not self.force_exit:
            await asyncio.sleep(0.02)
        self.config.timeout_graceful_shutdown = max(1, math.ceil(deadline - perf_counter()))
        await super().shutdown([*(sockets or []), *self._copies])


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
