"""A small HTTP client for JSON calls: one POST, one response, connections kept open.

In: the URL of a server, headers, a body. Out: an `HTTPResponse`, or a `CallError`. General clients spend about 3 ms of
CPU per call, which limits a tree search to some hundred calls per second; this one needs a thirtieth of that.

Supported: HTTP/1.1 and 1.0, TLS, chunked responses, user info in the URL (basic authentication), and the proxies of the
environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY). Redirects are not followed: a redirect is a second call that nobody has
agreed to pay for, maybe at another server. Compression is not offered.

A server may close a kept connection at any time. One that it has closed is not used; if it closes one at the moment of
a call, the error is `stale`, and the call can be repeated at once on a new connection.
"""

import asyncio
import base64
import os
import select
import ssl
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from stepladder.core.io.reply_size import PLAIN, check_plain, too_long

#: Whether the newest call of this task has left for the server. One that has not is certainly not billed.
SENT: ContextVar[bool] = ContextVar("sent", default=False)

#: Maximum bytes of the head and of the body of a response.
MAX_HEAD, MAX_REPLY = 1 << 18, 8 << 20

_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class CallError(Exception):
    """A call without a response. `connected` is False if the server was not reached at all.

    `stale`: a connection of an earlier call ended before the first byte of the response.
    """

    def __init__(self, problem: str, *, connected: bool, stale: bool = False) -> None:
        super().__init__(problem)
        self.connected, self.stale = connected, stale


class _NoResponse(OSError):
    """The connection ended before the first byte of the response."""


@dataclass(frozen=True, slots=True)
class HTTPResponse:
    """A response; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HTTPClient:
    """Calls one server. Used on one event loop."""

    def __init__(self, url: str, headers: Mapping[str, str], connect_timeout: float) -> None:
        """`url`: the common start of all calls, http or https."""
        self._parts = urlsplit(url)
        self._connect_timeout = connect_timeout
        self._idle: list[_Connection] = []
        self._tls = _tls_context() if self._parts.scheme == "https" else None
        self._host = _ascii(str(self._parts.hostname))
        place = self._host if self._parts.port is None else f"{self._host}:{self._parts.port}"
        proxy = getproxies().get(self._parts.scheme, "")
        bypassed = not proxy or proxy_bypass(place)
        self._proxy = None if bypassed else urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        self._target = quote(self._parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~", errors="replace")
        if self._proxy is not None and self._tls is None:
            self._target = f"http://{place}{self._target}"
        fields = {"Host": place, **PLAIN, **headers}
        if self._parts.username is not None:
            fields["Authorization"] = _basic(self._parts)
        if self._proxy is not None and self._proxy.username is not None and self._tls is None:
            fields["Proxy-Authorization"] = _basic(self._proxy)
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())

    async def post(self, path: str, body: bytes) -> HTTPResponse:
        """Send a JSON body to a path below the URL. Raises `CallError`, and `LongReply` for a response without end."""
        SENT.set(False)
        idle = self._take_idle()
        connection = idle or await self._connect()
        reader, writer = connection
        kept = False
        try:
            SENT.set(True)
            writer.write(self._head(path, len(body)) + body)
            response, kept = await _read_response(reader)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            stale = idle is not None and isinstance(error, _NoResponse)
            if stale:
                self.close()  # the others are as old
            raise CallError(_problem(error), connected=True, stale=stale) from None
        finally:
            if kept:
                self._idle.append(connection)
            else:
                writer.transport.abort()
        return response

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[1].transport.abort()

    def _head(self, path: str, length: int) -> bytes:
        fields = f"{self._fields}Content-Type: application/json\r\nContent-Length: {length}\r\n"
        return f"POST {self._target}{path} HTTP/1.1\r\n{fields}\r\n".encode("latin-1")

    def _take_idle(self) -> _Connection | None:
        """The newest idle connection that the server has not closed."""
        while self._idle:
            reader, writer = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing() or _has_arrived(writer)):
                return reader, writer
            writer.transport.abort()
        return None

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_timeout):
                return await self._open()
        except TimeoutError:
            raise CallError(f"no connection within {self._connect_timeout:g} s", connected=False) from None
        except (OSError, EOFError, ValueError) as error:
            raise CallError(_problem(error), connected=False) from None

    async def _open(self) -> _Connection:
        host, port = self._host.strip("[]"), self._parts.port or (443 if self._tls else 80)
        if self._proxy is None:
            return await asyncio.open_connection(host, port, ssl=self._tls, limit=MAX_HEAD)
        if self._proxy.scheme not in ("http", "https"):
            raise OSError(f"the environment names a {self._proxy.scheme} proxy; expected http or https, or NO_PROXY")
        secure = _tls_context() if self._proxy.scheme == "https" else None
        address = str(self._proxy.hostname), self._proxy.port or (443 if secure else 80)
        reader, writer = await asyncio.open_connection(*address, ssl=secure, limit=MAX_HEAD)
        if self._tls is None:
            return reader, writer
        try:
            allowed = "" if self._proxy.username is None else f"Proxy-Authorization: {_basic(self._proxy)}\r\n"
            place = f"{self._host}:{port}"
            writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{allowed}\r\n".encode("latin-1"))
            status, _, _ = _parse_head(await reader.readuntil(b"\r\n\r\n"))
            if status != 200:
                raise OSError(f"the proxy {self._proxy.hostname} returned status {status}")
            await writer.start_tls(self._tls, server_hostname=host)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer


async def _read_response(reader: asyncio.StreamReader) -> tuple[HTTPResponse, bool]:
    """The response, and whether the connection may be used again."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except ConnectionError as error:
        raise _NoResponse(str(error)) from None
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        raise _NoResponse from None
    status, headers, version = _parse_head(head)
    while status < 200:  # 1xx: the response follows
        status, headers, version = _parse_head(await reader.readuntil(b"\r\n\r\n"))
    check_plain(headers)
    wishes = headers.get("connection", "").lower()
    kept = "close" not in wishes if version == "HTTP/1.1" else "keep-alive" in wishes
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(_length(int(headers["content-length"])))
    elif status in (204, 304):
        body = b""
    else:
        body, kept = await _read_to_end(reader), False
    # What a server sends beyond its response must not be read as the next one.
    return HTTPResponse(status, headers, body), kept and not reader._buffer  # type: ignore[attr-defined]


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        total = _length(total + size)
        chunks.append((await reader.readexactly(size + 2))[:-2])
    while (await reader.readuntil(b"\r\n")) != b"\r\n":  # trailers
        pass
    return b"".join(chunks)


def _parse_head(head: bytes) -> tuple[int, dict[str, str], str]:
    """Status, headers and version of a response."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise ValueError(f"not an HTTP response: {first[:60]!r}")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(rest[:3]), headers, version


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    total = 0
    while part := await reader.read(1 << 16):
        total = _length(total + len(part))
        parts.append(part)
    return b"".join(parts)


def _length(length: int) -> int:
    if length < 0:
        raise ValueError(f"a response of {length} bytes")
    if length > MAX_REPLY:
        raise too_long(MAX_REPLY)
    return length


def _problem(error: BaseException) -> str:
    if isinstance(error, EOFError | _NoResponse):  # asyncio.IncompleteReadError
        return "the server closed the connection"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}. SSL_CERT_FILE names the file of another issuer"
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS: is it http:// instead of https://?"
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _has_arrived(writer: asyncio.StreamWriter) -> bool:
    """Whether anything has arrived on an idle connection, such as its end, that the event loop has not read yet."""
    socket = writer.get_extra_info("socket")
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([socket], [], [], 0)[0])
    ready = select.poll()
    ready.register(socket, select.POLLIN)
    return bool(ready.poll(0))


def _ascii(host: str) -> str:
    """A host as it is written in a header: IPv6 in brackets, other scripts in punycode."""
    if ":" in host:
        return f"[{host}]"
    return host if host.isascii() else host.encode("idna").decode()


def _basic(parts: SplitResult) -> str:
    user = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {base64.b64encode(user.encode()).decode()}"


def _tls_context() -> ssl.SSLContext:
    """The system's certificates, or those of certifi where the system has none that Python finds."""
    context = ssl.create_default_context()
    if not (os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR") or context.get_ca_certs()):
        with suppress(ImportError):
            import certifi

            context.load_verify_locations(certifi.where())
    return context
