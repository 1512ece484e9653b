"""The HTTP client of policies and judges, against servers that are written byte by byte."""

import asyncio
import os
import re
import socket
import ssl
import time
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import pytest

from stepladder.core.errors import BackendDown, BackendError
from stepladder.core.requests import Generate, Generation, Sampling
from stepladder.core.trace import Author, Segment
from stepladder.engines.openai.http_client import HTTPClient
from stepladder.engines.openai.openai_engine import OpenAIEngine
from stepladder.engines.spend.budget import max_usage, open_paid_engine
from tests.support.raw_http_server import RawServer, Script, body, raw_server, response


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("OPENAI_"):
            monkeypatch.delenv(name)


def ask(text: str = "Who?") -> Generate:
    return Generate((Segment(Author.PROMPT, text),), sampling=Sampling(max_tokens=20))


def opened(server: RawServer) -> "closing[OpenAIEngine]":
    return closing(OpenAIEngine("m", f"http://127.0.0.1:{server.port}/v1", max_retries=0, timeout=10))


def call(url: str, **settings: Any) -> Generation | BackendError:
    with closing(OpenAIEngine("m", url, **{"max_retries": 0, "timeout": 10} | settings)) as engine:
        (reply,) = engine.generate([ask()])
    return reply


def text_of(reply: Generation | BackendError) -> str:
    return reply.text if isinstance(reply, Generation) else f"{type(reply).__name__}: {reply}"


# --- connections that the server closes -----------------------------------------------------------------


def test_a_connection_that_was_closed_between_calls_is_no_failure_and_costs_nothing(tmp_path: Path) -> None:
    """The server closes after every response without a word; each call arrives once, and none counts as lost."""

    def answer(out: IO[bytes], n: int) -> bool:
        out.write(response(str(n)))
        return False

    with raw_server(answer) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with closing(open_paid_engine("m", tmp_path, url=url, max_retries=0, timeout=10)) as engine:
            for number in range(40):
                (reply,) = engine.generate([ask(f"Question {number}?")])
                assert text_of(reply) == str(number)
                assert server.closed.acquire(timeout=10)
            spend = engine.spend()
        assert (spend.calls, spend.lost, spend.tokens_read, spend.tokens_written) == (40, 0, 1200, 80)
    assert len(server.heads) == 40
    assert server.opened >= 40


def test_a_close_that_the_event_loop_has_not_seen_yet_is_seen_before_a_call() -> None:
    def answer(out: IO[bytes], n: int) -> bool:
        out.write(response(str(n)))
        return False

    async def twice(url: str) -> None:
        client = HTTPClient(url, {}, 5)
        for number in range(2):
            found = await client.post("/chat/completions", b"{}")
            assert found.body == body(str(number))
            time.sleep(0.1)  # the loop is busy while the end of the connection arrives
        client.close()

    with raw_server(answer) as server:
        asyncio.run(twice(f"http://127.0.0.1:{server.port}/v1"))
    assert server.connections == [1, 2]


def test_a_connection_that_is_closed_at_the_moment_of_a_call_is_replaced_at_once(tmp_path: Path) -> None:
    """The first call on an old connection is lost. It may have been billed: it is charged once, at its maximum."""
    lost = ask("Again?")

    def answer(out: IO[bytes], n: int) -> bool:
        return n != 1 and bool(out.write(response(str(n))))

    with raw_server(answer) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        with closing(open_paid_engine("m", tmp_path, url=url, max_retries=0, timeout=10)) as engine:
            assert text_of(engine.generate([ask("First?")])[0]) == "0"
            assert text_of(engine.generate([lost])[0]) == "2", "without a retry"
            spend = engine.spend()
    assert server.connections == [1, 1, 2]
    most = max_usage(lost)
    assert (spend.lost, spend.tokens_read, spend.tokens_written) == (1, 60 + most.read, 4 + most.written)


def test_a_server_that_closes_new_connections_too_is_a_failure() -> None:
    script: Script = lambda out, n: n == 0 and bool(out.write(response()))  # noqa: E731
    with raw_server(script) as server, opened(server) as engine:
        assert text_of(engine.generate([ask()])[0]) == "fine"
        assert "the server closed the connection" in text_of(engine.generate([ask()])[0])
    assert server.connections == [1, 1, 2]


def test_what_a_server_sends_beyond_its_response_is_not_the_next_one() -> None:
    def answer(out: IO[bytes], n: int) -> bool:
        return bool(out.write(response("one") + response("forged") if n == 0 else response("two")))

    with raw_server(answer) as server, opened(server) as engine:
        assert [text_of(engine.generate([ask()])[0]) for _ in range(2)] == ["one", "two"]
    assert server.connections == [1, 2]


# --- responses ------------------------------------------------------------------------------------------


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + end


@pytest.mark.parametrize(
    ("sent", "read", "kept"),
    [
        (response(), "fine", True),
        (response("fine", "Connection: close"), "fine", False),
        (response(version="1.0"), "fine", False),
        (response("fine", "Connection: keep-alive", version="1.0"), "fine", True),
        (b"HTTP/1.1 200 OK\r\n\r\n" + body("to the end"), "to the end", False),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Wait\r\nA: b\r\n\r\n" + response(), "fine", True),
        (chunked(body("fine")[:7], body("fine")[7:], end=b"0\r\nA: trailer\r\n\r\n"), "fine", True),
        (chunked(body("fine"), end=b""), "closed the connection", False),
        (chunked(end=b"-5\r\n\r\n"), "-5", False),
        (chunked(end=b"many\r\n"), "ValueError", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "a response of -5 bytes", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n", "ValueError", False),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "not an HTTP response: 'SSH-2.0-OpenSSH_9.2'", False),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * (1 << 19), "LimitOverrunError", False),
        (b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n", "returned status 407", True),
    ],
    ids=range(15),
)
def test_responses_of_all_shapes(sent: bytes, read: str, kept: bool) -> None:
    def answer(out: IO[bytes], n: int) -> bool:
        out.write(sent)
        return kept

    with raw_server(answer) as server, opened(server) as engine:
        for _ in range(2):
            assert read in text_of(engine.generate([ask()])[0])
    assert (server.connections == [1, 1]) == kept


# --- addresses ------------------------------------------------------------------------------------------


def test_an_ipv6_address() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with raw_server(host="::1") as server:
        assert text_of(call(f"http://[::1]:{server.port}/v1")) == "fine"
        assert f"\r\nHost: [::1]:{server.port}\r\n" in server.heads[0]


def test_a_path_cannot_add_to_the_request_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_server() as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.port}")
        assert text_of(call("http://bücher.invalid/a b\r\nX: y/v1é%20/")) == "fine"
    first, *fields = server.heads[0].split("\r\n")
    assert first == "POST http://xn--bcher-kva.invalid/a%20bX:%20y/v1%C3%A9%20/chat/completions HTTP/1.1"
    assert "Host: xn--bcher-kva.invalid" in fields


@pytest.mark.parametrize("url", ["http://a..b/v1", f"http://{'a' * 64}.b/v1", "http://::1:8000/v1"])
def test_a_host_that_has_no_name_is_refused(url: str) -> None:
    with pytest.raises(BackendDown, match="the server's URL is"):
        OpenAIEngine("m", url)


# --- the environment ------------------------------------------------------------------------------------


def test_headers_of_the_environment_replace_others_of_the_same_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "authorization: Gateway abc\n\nX-Team:\tblue: green \r\n")
    with raw_server() as server:
        call(f"http://127.0.0.1:{server.port}/v1", api_key="mine")
    assert "\r\nX-Team: blue: green\r\n" in server.heads[0]
    assert re.findall(r"(?i)authorization: (.*)\r", server.heads[0]) == ["Gateway abc"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OPENAI_ORG_ID", "org\r\nX-Forged: secret"),
        ("OPENAI_PROJECT_ID", "pröject secret"),
        ("OPENAI_CUSTOM_HEADERS", "X-Team: a\rX-Forged: secret"),
        ("OPENAI_CUSTOM_HEADERS", "X-Team: a\x85secret"),
        ("OPENAI_CUSTOM_HEADERS", "X Team: secret"),
        ("OPENAI_CUSTOM_HEADERS", "X-Team secret"),
        ("OPENAI_CUSTOM_HEADERS", ": secret"),
        ("OPENAI_CUSTOM_HEADERS", "content-length: 3"),
        ("OPENAI_CUSTOM_HEADERS", "Transfer-Encoding: chunked"),
    ],
)
def test_a_value_that_would_break_the_request_is_refused_without_showing_it(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(BackendDown, match=f"the environment variable {variable} ") as caught:
        OpenAIEngine("m", "http://127.0.0.1:9/v1")
    assert "secret" not in str(caught.value)


def test_a_gateway_that_repeats_a_header_does_not_bring_it_into_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Gateway-Key: gateway-secret-1")
    refusal = b"HTTP/1.1 400 Bad\r\nContent-Length: 25\r\n\r\nbad key: gateway-secret-1!"
    with raw_server(lambda out, n: bool(out.write(refusal))) as server:
        problem = text_of(call(f"http://127.0.0.1:{server.port}/v1"))
    assert "bad key: ***" in problem


# --- TLS and proxies ------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for `model.invalid`, and a server's context with it."""
    pytest.importorskip("cryptography")
    from datetime import UTC, datetime, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 7, now - timedelta(1), now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("model.invalid")]), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, plain = tmp_path / "cert.pem", serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(signed.public_bytes(pem))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, tmp_path / "key.pem")
    return path, context


def tunnel(out: IO[bytes], n: int) -> bool:
    """The answer of a proxy to CONNECT; the connection then belongs to the server behind it."""
    out.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    return False


def test_tls_through_a_proxy_to_a_server_whose_certificate_is_trusted(
    certificate: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, context = certificate
    with raw_server() as server:
        # The same connection: first the proxy's, then the server's.
        plain_talk = server._answer_one

        def both(connection: socket.socket, number: int, tls: ssl.SSLContext | None) -> bool:
            server.script = tunnel
            plain_talk(connection, number, None)
            server.script = lambda out, n: bool(out.write(response("x" * 700_000)))
            return plain_talk(connection, number, context)

        monkeypatch.setattr(server, "_answer_one", both)
        monkeypatch.setenv("https_proxy", f"http://ann:pw@127.0.0.1:{server.port}")
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        with closing(OpenAIEngine("m", "https://model.invalid/v1", max_retries=0, timeout=10)) as engine:
            for _ in range(2):
                assert len(text_of(engine.generate([ask()])[0])) == 700_000
    assert server.connections == [1, 1, 1]
    assert server.heads[0].startswith("CONNECT model.invalid:443 HTTP/1.1\r\nHost: model.invalid:443\r\n")
    assert "Proxy-Authorization: Basic YW5uOnB3\r\n" in server.heads[0]
    assert "Authorization" not in server.heads[0].replace("Proxy-Authorization", ""), "no key for the proxy"
    assert server.heads[1].startswith("POST /v1/chat/completions HTTP/1.1\r\nHost: model.invalid\r\n")
    assert "Proxy-Authorization" not in server.heads[1]
    assert not caplog.records


def test_a_certificate_that_nobody_has_signed(certificate: tuple[Path, ssl.SSLContext]) -> None:
    told = pytest.raises(BackendDown, match=r"certificate is not trusted: .*SSL_CERT_FILE")
    with raw_server(tls=certificate[1]) as server, told:
        call(f"https://127.0.0.1:{server.port}/v1")


def test_tls_at_a_server_without_it() -> None:
    def refuse(out: IO[bytes], n: int) -> bool:
        return False

    with raw_server(refuse) as server:
        server.talk = lambda connection, tls: connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")  # type: ignore[method-assign]
        with pytest.raises(BackendDown, match="is it http:// instead of https://"):
            call(f"https://127.0.0.1:{server.port}/v1")


def test_proxies_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with raw_server(lambda out, n: bool(out.write(b"HTTP/1.1 407 No\r\n\r\n")) and False) as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
        with pytest.raises(BackendDown, match=r"the proxy 127\.0\.0\.1 returned status 407"):
            call("https://[2001:db8::1]/v1")
        assert proxy.heads[0].startswith("CONNECT [2001:db8::1]:443 HTTP/1.1\r\n")
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    with pytest.raises(BackendDown, match="names a socks5 proxy; expected http or https, or NO_PROXY"):
        call("http://model.invalid/v1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with raw_server() as server:
        assert text_of(call(f"http://127.0.0.1:{server.port}/v1")) == "fine"
