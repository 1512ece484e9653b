"""Runs an HTTP application, with graceful shutdown.

In: the application, host and port. Out: a server (`DrainingServer`), or a complete run of one (`run`). On SIGTERM or
Ctrl-C it finishes the running requests first. Other machines can connect only with a token, or if the user allows
everyone.
"""

import asyncio
import math
import socket
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from time import perf_counter
from types import FrameType
from typing import TypedDict, cast

import uvicorn

from stepladder.core.errors import StepladderError
from stepladder.serve.http.client_connection import ClientConnection
from stepladder.serve.http.gate import Gate
from stepladder.serve.server_configs import HTTPConfig

#: Files that a server opens besides its connections, at most.
_OTHER_FILES = 100
#: uvloop accepts one connection per iteration and listening socket. On a busy server iterations are long, and hundreds
#: of clients would wait for seconds: it listens on this many copies of the socket.
_ACCEPTS_PER_ITERATION = 16


class DrainingServer(uvicorn.Server):
    """A uvicorn server that rejects new requests during shutdown and finishes the running ones."""

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
            http=partial(ClientConnection, app, allow_files(app.config.max_connections)),  # type: ignore[arg-type]
        )
        super().__init__(config)
        self.gate = app
        self._drain_seconds = drain_seconds
        self._on_start = on_start

    def drain(self) -> None:
        """Start the shutdown; from any thread."""
        self.gate.draining = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """The first signal drains, the second exits at once. Neither is raised again: this is a regular exit."""
        self.force_exit = self.should_exit
        self.drain()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and call `on_start` when requests and signals are handled."""
        self._socket_copies = [each.dup() for each in sockets or [] for _ in range(_ACCEPTS_PER_ITERATION - 1)]
        await super().startup([*(sockets or []), *self._socket_copies])
        self._on_start()

    async def on_tick(self, counter: int) -> bool:
        """Every 0.1 s: end the connections whose clients have no time left."""
        now = asyncio.get_running_loop().time()
        connections = cast(set[ClientConnection], self.server_state.connections)
        for each in [each for each in connections if each.due <= now]:
            each.expire()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Wait for the running requests, up to the drain time, then shut uvicorn down."""
        deadline = perf_counter() + self._drain_seconds
        while self.gate.in_flight and perf_counter() < deadline and not self.force_exit:
            await asyncio.sleep(0.02)
        self.config.timeout_graceful_shutdown = max(1, math.ceil(deadline - perf_counter()))
        await super().shutdown([*(sockets or []), *self._socket_copies])


class ListenOptions(TypedDict, total=False):
    """Where a server listens and who may connect. Port 0 picks a free one. `announce` gets the URL when it is ready."""

    host: str
    port: int
    #: Allow other machines to connect without a token.
    insecure: bool
    access_log: bool
    announce: Callable[[str], None]


def run(
    make_app: Callable[[bool], Gate],
    config: HTTPConfig,
    *,
    may: str,
    host: str = "127.0.0.1",
    port: int = 0,
    insecure: bool = False,
    access_log: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C. Addresses that other machines can reach need a token, or `insecure`.

    `make_app` gets whether only local requests are accepted. `may`: what everyone could do, for the error message.
    """
    local = is_loopback(host)
    if not local and not insecure and config.token is None:
        raise StepladderError(
            f"{host} can be reached from other machines, and there is no token: set STEPLADDER_TOKEN, or use insecure "
            f"(--insecure) if everyone who can connect may {may}"
        )
    app = make_app(local and not insecure)
    listener = listen(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    server = DrainingServer(app, config.drain_seconds, access_log=access_log, on_start=lambda: announce(url))
    server.run(sockets=[listener])


def allow_files(connections: int) -> int:
    """Raise this process's limit of open files for so many connections; returns how many of them it allows."""
    try:
        import resource  # not on Windows
    except ImportError:
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft in (resource.RLIM_INFINITY, -1) or soft >= wanted:
        return connections
    allowed = wanted if hard in (resource.RLIM_INFINITY, -1) else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, soft), hard))
    return max(allowed - _OTHER_FILES, 1)


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 picks a free one."""
    # With an explicit protocol: asyncio sets TCP_NODELAY only if it sees TCP.
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
