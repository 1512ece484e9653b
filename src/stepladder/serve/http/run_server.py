"""Runs an application until it is asked to end, and lets it end in good order.

In: the application behind its gate, and where to listen. Out: a server (`DrainingServer`), or a whole life of one
(`run`): SIGTERM or Ctrl-C lets it answer what is under way first. Other machines are let in only with a token, or when
the user says that everyone may come.
"""

import asyncio
import math
import socket
from collections.abc import Callable
from ipaddress import ip_address
from time import perf_counter
from types import FrameType

import uvicorn

from stepladder.core.errors import StepladderError
from stepladder.serve.http.app import HTTPApp

#: Longer than clients keep unused connections, so that none is closed under a request.
_KEEP_ALIVE_SECONDS = 75
#: uvloop takes one connection a turn from each socket it listens on. A busy server's turns are long, and hundreds of
#: clients would wait for seconds to be heard at all: it listens on so many copies of the socket.
_ACCEPTED_A_TURN = 16


class DrainingServer(uvicorn.Server):
    """A uvicorn server that ends in good order: it sends new requests away while it answers those under way."""

    def __init__(
        self,
        app: HTTPApp,
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


def run(
    app: HTTPApp,
    drain_seconds: float,
    *,
    host: str,
    port: int,
    access_log: bool,
    announce: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C. `announce` is called with the URL when clients can connect."""
    listener = listen(host, port)
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    server = DrainingServer(app, drain_seconds, access_log=access_log, on_start=lambda: announce(url))
    server.run(sockets=[listener])


def check_host(host: str, *, has_token: bool, insecure: bool, may: str) -> None:
    """Refuse addresses that other machines can reach, unless a token keeps strangers out or `insecure` lets them in.

    `may` says what everyone could do.
    """
    if not has_token and not insecure and not is_loopback(host):
        raise StepladderError(
            f"{host} can be reached from other machines, and no token was given: set STEPLADDER_TOKEN, or say insecure "
            f"(--insecure) when everyone who can connect may {may}"
        )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
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
