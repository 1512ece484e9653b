"""What a client connection may cost: bytes and seconds of a request's head, idle time, unread responses.

In: the bytes of a connection. Out: requests for the gate, which limits their bodies; an error in JSON, or a closed
connection, for clients that exceed a limit. uvicorn's protocol for httptools has none of these limits.

While the server works on a response it waits for nobody. Otherwise it waits for the client, for a limited time:

    for the head of a request   header_seconds; idle_seconds where the connection has been used before
    for the rest of a body      body_seconds: the gate has responded, or does so first
    for a response to be read   body_seconds without progress
    for a refused client        to read the error; what it still sends is discarded
"""

import math
from typing import Any, Self, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from stepladder.serve.http.gate import DISCARD_FACTOR, Gate
from stepladder.serve.http.http_errors import HTTPError

#: Closing a connection with unread data destroys the error: up to this many bytes and seconds are discarded first.
_DISCARD_BYTES, _LINGER_SECONDS = 4 * 2**20, 2.0
#: Finding those takes a while: one connection in so many is dropped at once.
_DROPPED_FRACTION = 50
#: Requests that a client may send on one connection before it has the response to the first.
_MAX_PIPELINED = 16


class _NoTrailers(list[tuple[bytes, bytes]]):
    """The headers after a body, which uvicorn would add to those before it: none."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


_NO_TRAILERS = _NoTrailers()


class ClientConnection(HttpToolsProtocol):
    """One connection. The server calls `expire` when it is due."""

    def __init__(self, gate: Gate, max_connections: int, **given: Any) -> None:
        super().__init__(**given)
        self._gate, self._limits, self._max_connections = gate, gate.config, max_connections
        #: Since when it waits for the client, and until when; infinite while the server works on a response.
        self.since = self.due = math.inf
        #: Whether the head of a request is next, or under way; and whether nothing of it has arrived.
        self._in_head = self._silent = True
        #: Whether the bytes that are parsed now began a head or a body, or ended one.
        self._moved = False
        #: Bytes that may still arrive as part of this head or body.
        self._left = self._limits.max_header_bytes
        self._unsent: float = math.inf
        self._refusal: HTTPError | None = None
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait(self._limits.header_seconds)
        if len(self.connections) > self._max_connections:
            self._make_room()

    def _make_room(self) -> None:
        """Drop the connections that have waited longest for their clients, preferably those that were never used."""
        others = [each for each in cast(set[Self], self.connections) if each is not self and each.since < math.inf]
        others.sort(key=lambda each: (each.cycle is not None, each.since))
        for each in others[: self._max_connections // _DROPPED_FRACTION + 1]:
            each.transport.abort()
            self.connections.discard(each)
        if not others:
            detail = f"all {self._max_connections:,} connections are in use: try again in 1 s"
            self._refuse(HTTPError(503, detail, {"retry-after": "1"}))

    # --- Requests ---------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._refusal is not None:
            if self._left < 0:
                self.transport.abort()
            return
        self._moved, self._silent = self._silent, False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # there is no other protocol: the request is answered as any other
        except httptools.HttpParserError as error:
            reason = error.__context__
            self._refuse(reason if isinstance(reason, HTTPError) else HTTPError(400, "the request is not HTTP/1.1"))
        else:
            if self._left < 0:
                self._refuse(self._too_long() if self._in_head else HTTPError(413, "the body is too long"))
        if self._moved:
            self._take_turn()

    def on_headers_complete(self) -> None:
        limit = self._limits.max_header_bytes
        # What has arrived may contain a part of the body, too. A header line has four bytes more: ": " and its end.
        if self._left < 0 and len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > limit:
            raise self._too_long()
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise HTTPError(400, f"more than {_MAX_PIPELINED} requests wait on this connection")
        self._in_head, self._left = False, (DISCARD_FACTOR + 1) * self._limits.max_body_bytes + limit
        self._moved = True
        super().on_headers_complete()
        self.headers = _NO_TRAILERS

    def _too_long(self) -> HTTPError:
        return HTTPError(431, f"the headers are longer than {self._limits.max_header_bytes:,} bytes")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = self._silent = self._moved = True
        self._left = self._limits.max_header_bytes

    # --- Responses --------------------------------------------------------------------------------------

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """As uvicorn's, without a timer per response."""
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        self._take_turn()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._take_turn()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._take_turn()

    @property
    def _open_cycle(self) -> RequestResponseCycle | None:
        """The newest request, if its response is not complete."""
        cycle = cast(RequestResponseCycle | None, self.cycle)
        return None if cycle is None or cycle.response_complete else cycle

    # --- Time -------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        self.since = self.loop.time()
        self.due = self.since + seconds

    def _take_turn(self) -> None:
        """Wait for the client, if it is its turn."""
        if self._refusal is not None:
            return
        if self.flow.write_paused or self.transport.is_closing():
            self._unsent = math.inf
            self._wait(self._limits.body_seconds)
        elif not self._in_head and not self.pipeline:
            self._wait(self._limits.body_seconds + _LINGER_SECONDS)
        elif self._open_cycle is not None:
            self.since = self.due = math.inf
        else:
            self._wait(self._limits.idle_seconds if self._silent else self._limits.header_seconds)

    def expire(self) -> None:
        """The time of the client is over."""
        if self._refusal is not None:
            self.transport.abort()
        elif self.flow.write_paused or self.transport.is_closing():
            unsent = self.transport.get_write_buffer_size()
            if unsent >= self._unsent or not unsent:
                self.transport.abort()
            else:
                self._unsent = unsent
                self._wait(self._limits.body_seconds)
        elif self._silent or not self._in_head:
            self.transport.close()
            self._take_turn()
        else:
            self._refuse(HTTPError(408, f"the headers were not received within {self._limits.header_seconds:g} s"))

    def _refuse(self, error: HTTPError) -> None:
        """Send an error, unless a response is being sent, and close the connection."""
        self._refusal = error
        self._gate.metrics.count_request(error.status_code)
        self.pipeline.clear()
        partial = False
        for cycle in (self._running, self._open_cycle):  # the oldest request and the newest
            if cycle is not None and not cycle.response_complete:
                partial = partial or cycle.response_started
                cycle.disconnected = True
                cycle.message_event.set()
        if partial or self.transport.is_closing():
            self.transport.close()
        else:
            response = self._gate.api.error_response(error)
            headers = (*self.server_state.default_headers, *response.raw_headers, (b"connection", b"close"))
            lines = [b"%b: %b\r\n" % header for header in headers]
            self.transport.write(b"".join((STATUS_LINE[error.status_code], *lines, b"\r\n", bytes(response.body))))
            self.transport.write_eof()
        self.flow.resume_reading()
        self._left = _DISCARD_BYTES
        self._wait(_LINGER_SECONDS)

    def shutdown(self) -> None:
        if self._refusal is not None:
            self.transport.abort()
        else:
            super().shutdown()
