"""What clients may cost a server: headers, silence, slow bodies, unread answers, too many connections, on any route."""

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, suppress
from select import select
from typing import Any

import httpx2
import pytest
from mcp import Client

from stepladder.core.trace import Passage
from tests.support import ROOT, agent_servers, search_servers
from tests.support.agent_servers import Oracle
from tests.support.http_servers import RunningServer
from tests.support.samples import WordRetriever
from tests.support.search_servers import POST, TOWER, HeldRetriever, spoken, until

AGENT, SEARCH = "agent", "search"
#: Routes of both servers, of one alone, and of none.
ROUTES = ["/mcp", "/v1/chat/completions", "/retrieve", "/health", "/metrics", "/no/such/route"]
QUICK = {"header_seconds": 0.4, "body_seconds": 0.4, "idle_seconds": 0.4}


@contextmanager
def serving(kind: str, **settings: Any) -> Iterator[RunningServer]:
    made: Any = search_servers.running(WordRetriever(), **settings)
    if kind == AGENT:
        made = agent_servers.running(Oracle(), **settings)
    with made as server:
        yield server


@pytest.fixture(scope="module", params=[AGENT, SEARCH])
def quick(request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server with little patience."""
    with serving(request.param, **QUICK) as server:
        yield server


def connected(server: RunningServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=15)


def heard(connection: socket.socket) -> bytes:
    """All that the server says until it closes the connection."""
    parts = []
    with suppress(ConnectionResetError):
        while part := connection.recv(2**16):
            parts.append(part)
    return b"".join(parts)


def problem(reply: httpx2.Response) -> str:
    """The message of an error of either server."""
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    return str(body["detail"] if "detail" in body else body["error"]["message"])


# --- Heads of requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        (b"x: " + b"y" * 2**20,) * 40,
        (b"x: y\r\n" * 2**17,) * 40,
        (b"x: y\r\n" * 20_000, b"\r\n"),
        (b"y" * 2**20,) * 40,
    ],
    ids=["one header", "many headers", "a head that ends", "a name"],
)
def test_long_headers_are_refused(quick: RunningServer, head: tuple[bytes, ...]) -> None:
    for start in (b"POST /mcp HTTP/1.1\r\n", b"GET /none HTTP/1.1\r\n"):
        reply = spoken(quick, start, *head)
        assert (reply.status_code, problem(reply)) == (431, "the headers are longer than 65,536 bytes")
        assert reply.headers["connection"] == "close"
    assert spoken(quick, b"GET /" + b"y" * 2**22 + b" HTTP/1.1\r\n\r\n").status_code == 431
    fits = b"x: " + b"y" * 60_000 + b"\r\n\r\n"
    assert spoken(quick, b"GET /health HTTP/1.1\r\nConnection: close\r\n" + fits).status_code == 200


def test_headers_are_not_waited_for(quick: RunningServer) -> None:
    drips = spoken(quick, b"GET /health HTTP/1.1\r\n", *[b"x: y\r\n"] * 30, pause=0.05)
    assert (drips.status_code, problem(drips)) == (408, "the headers were not received within 0.4 s")
    with connected(quick) as again:
        again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
        said = heard(again)
        assert said.count(b"HTTP/1.1 ") == 1, "the second request does not come, and the connection is not kept for it"
        assert said.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("noise", [b"", b"\r\n"])
def test_silent_connections_are_closed(quick: RunningServer, noise: bytes) -> None:
    silent = [connected(quick) for _ in range(300)]
    for each in silent:
        each.sendall(noise)
    assert quick.client.get("/health").status_code == 200
    for each in silent:
        said = heard(each)
        # On a busy machine the server may close a connection before it reads what was sent.
        assert not said or (noise and said.startswith(b"HTTP/1.1 408"))
        each.close()
    with connected(quick) as used:
        used.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert heard(used).endswith(b'{"status":"ok"}'), "and one that is used is closed when it is not used again"


def test_the_longest_silent_connections_make_room() -> None:
    with serving(SEARCH, max_connections=20) as server:
        assert server.client.get("/health").status_code == 200
        kept = next(iter(server.server.server_state.connections))
        silent = [connected(server) for _ in range(60)]
        until(lambda: len(select(silent, [], [], 0)[0]) == 41)  # closed ones can be read
        assert server.client.get("/health").status_code == 200
        assert kept in server.server.server_state.connections, "a connection that was used goes last"
        assert len(server.server.server_state.connections) == 20
        for each in silent:
            each.close()


def test_new_connections_are_refused_while_all_are_at_work() -> None:
    retriever = HeldRetriever()
    with search_servers.running(retriever, max_connections=2) as server, ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(httpx2.post, f"{server.url}/retrieve", json={"queries": [f"{n}"]}) for n in range(2)]
        until(lambda: [each.since for each in list(server.server.server_state.connections)] == [math.inf] * 2)
        reply = spoken(server)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert problem(reply) == "all 2 connections are in use: try again in 1 s"
        retriever.go.set()
        assert [each.result().status_code for each in busy] == [200, 200]


# --- Bodies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("framing", [b"Content-Length: 99", b"Transfer-Encoding: chunked"])
def test_slow_bodies_are_refused_on_every_route(quick: RunningServer, path: str, framing: bytes) -> None:
    head = b"POST %b HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n" % (path.encode(), framing)
    reply = spoken(quick, head, *[b"1\r\n{\r\n"] * 12, pause=0.05)
    assert (reply.status_code, problem(reply)) == (408, "the body was not received within 0.4 s")


def test_the_rest_of_a_body_is_not_waited_for_after_an_answer() -> None:
    with serving(AGENT, token="open-sesame", body_seconds=0.1) as server, connected(server) as connection:
        connection.sendall(b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n")
        assert connection.recv(2**16).startswith(b"HTTP/1.1 401")

        def drip() -> bool:
            with suppress(OSError):
                connection.sendall(b"x")
            return not server.server.server_state.connections

        until(drip)


def test_the_body_of_the_next_request_may_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.serve.http.client_connection._LINGER_SECONDS", 0.0)
    retriever, body = HeldRetriever(), json.dumps({"queries": [TOWER]}).encode()
    settings = {"body_seconds": 0.2, "idle_seconds": 0.2}
    with search_servers.running(retriever, **settings) as server, connected(server) as connection:
        connection.sendall(POST % len(body) + body + POST % len(body) + body[:9])
        assert retriever.begun.wait(15)
        time.sleep(0.5)
        connection.sendall(body[9:])
        retriever.go.set()
        assert heard(connection).count(b"HTTP/1.1 200") == 2


def test_bodies_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepladder.serve.http.gate._MAX_BODIES", 2)
    with serving(SEARCH, max_body_bytes=1000) as server:
        large = [connected(server) for _ in range(3)]
        for each in large:
            each.sendall(POST % 1000 + b"x" * 900)
        until(lambda: server.metric('stepladder_requests_total{status="503"}') == 1)
        for each in large:
            each.close()
        until(lambda: server.server.gate.in_flight == 0 or server.metric("stepladder_queue_length") > 0)
        assert server.client.post("/retrieve", json={"queries": [TOWER]}).status_code == 200


@pytest.mark.parametrize("trailer", [b"x: y\r\n" * 2**18, b"x: " + b"y" * 2**20], ids=["many", "long"])
def test_headers_after_a_body_are_not_kept(trailer: bytes) -> None:
    chunked = b"POST /retrieve HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with serving(SEARCH, max_body_bytes=1000, max_header_bytes=1000) as server:
        reply = spoken(server, chunked, *[trailer] * 4)
        assert (reply.status_code, problem(reply)) == (413, "the body is too long")
        assert spoken(server, chunked, b"authorization: x\r\nConnection: close\r\n\r\n").status_code == 422


# --- Answers --------------------------------------------------------------------------------------------


def test_answers_that_are_not_read_are_given_up() -> None:
    text = "x" * 10**6
    retriever = WordRetriever([Passage(f"p{n}", f"t{n}", text) for n in range(30)])
    body = json.dumps({"queries": ["a"], "topk": 30}).encode()
    with search_servers.running(retriever, body_seconds=0.3) as server:
        for ending in (b"", b"Connection: close\r\n"):
            with connected(server) as connection:
                connection.sendall((POST % len(body)).replace(b"\r\n\r\n", b"\r\n" + ending + b"\r\n") + body)
                until(lambda: server.metric("stepladder_queries_total") > 0)
                until(lambda: len(server.server.server_state.connections) == 1)  # the one that asks for metrics
                assert len(heard(connection)) < 30 * 10**6
        assert len(server.ask("a", topk=30).content) > 30 * 10**6, "those who read have the time they need"


def test_requests_that_do_not_wait_for_answers_are_limited(
    quick: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with connected(quick) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert heard(connection).count(b"HTTP/1.1 200") < 20
    with connected(quick) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5)
        assert heard(connection).count(b"HTTP/1.1 200") == 5
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "noise",
    [
        b"not HTTP\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40),
        b"GET / HTTP/9.9\r\n\r\n",
        b"CONNECT here:443 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nContent-Length: minus one\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused_in_json(quick: RunningServer, noise: bytes) -> None:
    reply = spoken(quick, noise)
    assert (reply.status_code, problem(reply)) == (400, "the request is not HTTP/1.1")


def test_other_protocols_are_not_offered(quick: RunningServer) -> None:
    upgrade = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    reply = spoken(quick, upgrade)
    assert reply.json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"accept": "text/html"}, 406),
        ({"content-type": "text/plain"}, 400),
        ({"accept": "text/html", "mcp-protocol-version": "2026-07-28"}, 406),
        ({"content-type": "text/plain", "mcp-protocol-version": "2026-07-28"}, 400),
    ],
)
def test_errors_of_the_mcp_library_are_json(headers: dict[str, str], status: int) -> None:
    with serving(AGENT) as server:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        accepted = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        reply = server.client.post("/mcp", content=json.dumps(call), headers={**accepted, **headers})
        assert reply.status_code == status
        assert reply.headers["content-type"] == "application/json"
        assert reply.json()["error"]["message"]


def test_without_the_token_nothing_is_said() -> None:
    with serving(AGENT, token="open-sesame") as server:
        known = ["/", "/v1/models", "/v1/models/x", "/mcp", "/info", "/metrics", "/openapi.json", "/none", "/health/"]
        asked = [(method, path) for path in known for method in ("GET", "POST", "PUT", "OPTIONS")]
        asked += [(method, "/health") for method in ("POST", "PUT", "DELETE", "OPTIONS")]
        replies = {server.client.request(*each).content for each in asked}
        (only,) = replies
        assert json.loads(only)["error"]["code"] == "invalid_api_key"
        assert server.client.get("/health").json() == {"status": "ok"}


# --- The truth about answers ----------------------------------------------------------------------------


def test_health_is_not_ok_while_every_search_fails() -> None:
    class Fragile(WordRetriever):
        broken = True

        def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
            if self.broken:
                raise MemoryError("no room at /secret/place")
            return super().search(queries, k)

    retriever = Fragile()
    with search_servers.running(retriever) as server:
        for number in range(5):
            assert server.client.get("/health").json() == {"status": "ok"}
            assert server.ask(f"query {number}").status_code == 500
        health = server.client.get("/health")
        assert health.status_code == 503
        expected = {"status": "failing", "detail": "the last 5 answers failed; see the server's log"}
        assert health.json() == expected
        retriever.broken = False
        assert server.ask("query").status_code == 200
        assert server.client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("way", ["chat", "stream", "mcp", "late"])
def test_health_is_not_ok_while_every_question_fails(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Oracle):
        broken = True

        def generate(self, requests: Any) -> Any:
            if self.broken and way != "late":
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return super().generate(requests)

    engine = Broken()
    engine.held = "held"
    with agent_servers.running(engine, answer_seconds=0.05 if way == "late" else 20) as server:
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        accepted = {"accept": "application/json, text/event-stream"}

        def ask(question: str) -> None:
            arguments = {"name": "answer_question", "arguments": {"question": question}}
            if way == "mcp":
                assert "failed" in server.client.post("/mcp", json={**call, "params": arguments}, headers=accepted).text
            else:
                server.post(question, stream=way == "stream")

        for number in range(5):
            assert server.client.get("/health").status_code == 200
            ask(f"held {number}")
        health = server.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failing")
        assert "the last 5 answers failed" in problem(health)
        engine.broken = False
        engine.go.set()
        if way == "late":
            monkeypatch.setattr("stepladder.serve.http.answer_health._STALE_SECONDS", 0.0)
        else:
            assert server.post().status_code == 200
        assert server.client.get("/health").json() == {"status": "ok"}


# --- The end --------------------------------------------------------------------------------------------


SERVER = """
import sys, threading
from stepladder.driver import Driver
from stepladder.serve.agent.agent_server import serve_agent
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.server_configs import AgentServerConfig
from tests.support.agent_servers import WideOracle, gold_play
from tests.support.samples import WordRetriever

engine = WideOracle()
engine.held = "held"

def follow():
    engine.begun.wait()
    print("begun", flush=True)
    sys.stdin.readline()
    engine.go.set()

threading.Thread(target=follow, daemon=True).start()
agent = ServedAgent(Driver(engine, WordRetriever()), gold_play)
serve_agent(agent, AgentServerConfig(), port=0, announce=lambda url: print(url, flush=True))
"""


def test_sigterm_lets_mcp_calls_finish() -> None:
    async def talk(process: "subprocess.Popen[str]") -> list[Any]:
        assert process.stdout is not None
        assert process.stdin is not None
        url = process.stdout.readline().strip()
        async with AsyncExitStack() as stack:
            modes: tuple[Any, ...] = ("auto", "legacy")
            clients = [await stack.enter_async_context(Client(f"{url}/mcp", mode=mode)) for mode in modes]
            for each in clients:
                await each.list_tools()  # before the first call, as after SIGTERM it is refused
            calls = [asyncio.create_task(each.call_tool("answer_question", {"question": "held"})) for each in clients]
            assert await asyncio.to_thread(process.stdout.readline) == "begun\n"
            process.terminate()
            await asyncio.sleep(1.2)  # the library that would end the streams looks every half second
            process.stdin.write("\n")
            process.stdin.flush()
            return await asyncio.gather(*calls)

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SERVER], cwd=ROOT, env=environment, **pipes) as process:
        try:
            results = asyncio.run(asyncio.wait_for(talk(process), 60))
            assert [result.structured_content["answer"] for result in results] == ["Velm", "Velm"]
            assert process.wait(15) == 0
        finally:
            process.kill()


STDIO = """
import asyncio, sys, threading, time
from stepladder.driver import Driver
from stepladder.serve.agent.mcp_server import serve_stdio
from stepladder.serve.agent.scheduler import AgentMetrics, Scheduler
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.server_configs import AgentServerConfig
from tests.support.agent_servers import WideOracle, gold_play
from tests.support.samples import WordRetriever

engine = WideOracle()
engine.held = "held"

def follow():
    engine.begun.wait()
    print("begun", file=sys.stderr, flush=True)
    time.sleep(0.5)
    engine.go.set()

threading.Thread(target=follow, daemon=True).start()
driver = Driver(engine, WordRetriever())
scheduler = Scheduler(driver, max_waiting=10, metrics=AgentMetrics())
asyncio.run(serve_stdio(ServedAgent(driver, gold_play), scheduler, AgentServerConfig()))
"""


def test_sigterm_lets_calls_over_stdio_finish() -> None:
    who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"name": "answer_question", "arguments": {"question": "held"}}
    messages = [
        {"id": 1, "method": "initialize", "params": who},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": call},
    ]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, "-c", STDIO], cwd=ROOT, env=environment, **pipes) as process:
        try:
            for message in messages:
                process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
                process.stdin.flush()
            assert "begun\n" in iter(process.stderr.readline, "")
            process.terminate()
            replies = [json.loads(line) for line in process.stdout]
            assert replies[-1]["result"]["structuredContent"]["answer"] == "Velm"
            assert process.wait(15) == -signal.SIGTERM
        finally:
            process.kill()
