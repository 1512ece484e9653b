"""What clients do to a server: endless headers, silence, slow bodies, noise. And what a server owes its clients."""

import json
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from under_attack.fake import answering, completion
from under_attack.version import NotRun, Version, attack, end, listed

CHAT = "/v1/chat/completions"
MCP = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
#: Seconds after which a server with its defaults must have refused, and the options of one with less patience.
PATIENCE, IMPATIENT = 15.0, ("--body-seconds", "2")


def index(version: Version) -> Path:
    """An index of one passage, made once."""

    def make(folder: Path) -> None:
        passage = {"id": "1", "title": "Orm Tower", "text": "Orm Tower was designed by Ada Tarn."}
        (folder / "corpus.jsonl").write_text(json.dumps(passage), encoding="utf-8")
        version.cli("index", "build", folder / "corpus.jsonl", "--out", folder / "index", folder=folder).done()

    return version.made("small-index", make) / "index"


def agent(version: Version, model: str) -> list[object]:
    """`serve-agent` with a model of ours."""
    engine = ["--engine", "openai", "--base-url", f"http://{model}/v1", "--model", "m", "--name", "m"]
    return ["serve-agent", *engine, "--agent", "direct", "--index", index(version)]


def answers(_: str, __: dict[str, Any]) -> tuple[int, object]:
    """A model that answers at once."""
    return 200, completion("<answer>Ada Tarn</answer>")


@contextmanager
def both(version: Version, *options: str, **env: str) -> Iterator[dict[str, tuple[str, int]]]:
    """The addresses of a search server and an agent server."""
    with (
        answering(answers) as model,
        version.serving("serve", index(version), *options, **env) as (_, *search),
        version.serving(*agent(version, model), *options, **env) as (_, *agents),
    ):
        yield {"serve": (search[0], search[1]), "serve-agent": (agents[0], agents[1])}


def ask(address: tuple[str, int], method: str, path: str, body: object = None, **more: Any) -> tuple[int, str, str]:
    """Status, content type and body of a response."""
    connection = HTTPConnection(*address, timeout=more.pop("timeout", 300))
    data = body if body is None or isinstance(body, str) else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json", **more.pop("headers", {})})
    reply = connection.getresponse()
    return reply.status, reply.getheader("content-type") or "", reply.read().decode(errors="replace")


def chat(address: tuple[str, int], question: str) -> int:
    """The status of an answer."""
    return ask(address, "POST", CHAT, {"model": "m", "messages": [{"role": "user", "content": question}]})[0]


def call(tool: str, **arguments: object) -> dict[str, object]:
    """A call of a tool, for MCP."""
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def head(method: str, path: str, rest: str = "") -> bytes:
    """The beginning of a request."""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{rest}".encode()


@attack("headers without end")
def headers_without_end(version: Version, _: Path) -> str | None:
    """20 MB of one header, and of many."""

    def accepted(name: str, address: tuple[str, int], chunk: bytes) -> str | None:
        with socket.create_connection(address, timeout=30) as client:
            client.sendall(head("GET", "/health"))
            for _ in range(20 * 2**20 // len(chunk)):
                try:
                    client.sendall(chunk)
                except OSError:  # closed
                    return None
                if select.select([client], [], [], 0)[0]:
                    return None
        return f"{name} read 20 MB of {'one header' if b':' not in chunk else 'headers'}"

    with both(version) as servers:
        chunks = (b"y" * 2**16, b"name: value\r\n" * 5000)
        return listed(accepted(name, address, chunk) for name, address in servers.items() for chunk in chunks)


def _refused_after(client: socket.socket, piece: bytes, seconds: float) -> bool:
    """Whether the server answers or closes while a client sends a piece now and then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if select.select([client], [], [], 0.25)[0]:
            return True
        with suppress(OSError):
            client.sendall(piece)
    return False


@attack("silent connections")
def silent_connections(version: Version, _: Path) -> str | None:
    """Connections that say nothing, and such that never come to the end of their headers."""
    with both(version) as servers:
        kinds = {"silent": (b"", b""), "slow headers": (head("GET", "/health"), b"x")}
        opened = {}
        for name, address in servers.items():
            for kind, (start, piece) in kinds.items():
                opened[f"{name}, {kind}"] = (socket.create_connection(address, timeout=30), start, piece)
        for client, start, _ in opened.values():
            client.sendall(start)
        with ThreadPoolExecutor(len(opened)) as pool:
            waits = {key: pool.submit(_refused_after, each[0], each[2], PATIENCE) for key, each in opened.items()}
        for client, *_ in opened.values():
            client.close()
        return listed(None if wait.result() else f"{key}: open after {PATIENCE:g} s" for key, wait in waits.items())


@attack("slow bodies")
def slow_bodies(version: Version, _: Path) -> str | None:
    """Bodies that come one byte at a time, to servers that allow two seconds."""
    routes = {"serve": ("/retrieve", "/no/such/route"), "serve-agent": ("/mcp", CHAT, "/no/such/route")}
    with both(version, *IMPATIENT) as servers, ThreadPoolExecutor(8) as pool:
        waits = {}
        for name, paths in routes.items():
            for path in paths:
                client = socket.create_connection(servers[name], timeout=30)
                more = "Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"
                client.sendall(head("POST", path, f"{more}Content-Length: 100000\r\n\r\n"))
                waits[f"{name} {path}"] = pool.submit(_refused_after, client, b" ", 8)
        return listed(None if wait.result() else f"{key} waits for a slow body" for key, wait in waits.items())


class Held:
    """A model that answers when it is let go."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def answer(self, _: str, __: dict[str, Any]) -> tuple[int, object]:
        self.begun.set()
        self.go.wait(60)
        return 200, completion("<answer>Ada Tarn</answer>")

    def release_later(self) -> None:
        """Let go, after the time in which a library looks for signals."""
        if not self.begun.wait(60):
            raise NotRun("the model was not asked")
        threading.Timer(2, self.go.set).start()


@attack("sigterm during a tool call")
def sigterm_during_a_tool_call(version: Version, _: Path) -> str | None:
    """MCP over HTTP: the call was made before the server was asked to end."""
    held = Held()
    with (
        answering(held.answer) as model,
        version.serving(*agent(version, model)) as (process, *address),
        ThreadPoolExecutor(1) as pool,
    ):
        where = (address[0], address[1])
        said = pool.submit(ask, where, "POST", "/mcp", call("answer_question", question="Who?"), headers=MCP)
        held.release_later()
        process.send_signal(signal.SIGTERM)
        try:
            status, _, text = said.result()
        except (OSError, HTTPException) as error:
            return f"the call was cut: {error!r}"
        return None if status == 200 and "Ada Tarn" in text else f"the call was cut: {status} {text[:100]!r}"


@attack("sigterm during a tool call (stdio)")
def sigterm_over_stdio(version: Version, folder: Path) -> str | None:
    """MCP over standard input and output."""
    held = Held()
    who = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        call("answer_question", question="Who?"),
    ]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with (
        answering(held.answer) as model,
        version.start(*agent(version, model), "--mcp", folder=folder, **pipes) as process,
    ):
        assert process.stdin is not None
        process.stdin.write("".join(json.dumps(message) + "\n" for message in messages))
        process.stdin.flush()
        held.release_later()
        end(process, signal.SIGTERM)
        assert process.stdout is not None
        replies = [json.loads(line) for line in process.stdout]
    answered = any(reply.get("id") == 2 and "Ada Tarn" in json.dumps(reply) for reply in replies)
    return None if answered else "the call was cut"


@attack("plain-text errors")
def plain_text_errors(version: Version, _: Path) -> str | None:
    """What is not HTTP, no route, or not accepted by a library is refused in JSON."""

    def raw(name: str, address: tuple[str, int], noise: bytes) -> str | None:
        with socket.create_connection(address, timeout=10) as client:
            client.sendall(noise)
            said = client.makefile("rb").read(2000)
        told = noise.split(b"\r\n")[0].decode()
        return None if b"application/json" in said.lower() else f"{name}, '{told}': {said[:60]!r}"

    def asked(name: str, address: tuple[str, int], method: str, path: str, **headers: str) -> str | None:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}) if method == "POST" else None
        status, kind, said = ask(address, method, path, body, headers={**MCP, **headers})
        if status < 400 or "json" in kind:
            return None
        return f"{name}, {method} {path}: {status} {kind} {said[:40]!r}"

    def problems() -> Iterator[str | None]:
        for name, address in servers.items():
            for noise in (b"not HTTP\r\n\r\n", head("POST", "/health", "Content-Length: minus one\r\n\r\n")):
                yield raw(name, address, noise)
            yield asked(name, address, "GET", "/no/such/route")
            yield asked(name, address, "DELETE", "/health")
        yield asked("serve-agent", servers["serve-agent"], "POST", "/mcp", Accept="text/html")
        yield asked("serve-agent", servers["serve-agent"], "POST", "/mcp", **{"Content-Type": "text/plain"})

    with both(version) as servers:
        return listed(problems())


@attack("endpoints without a token")
def endpoints_without_a_token(version: Version, _: Path) -> str | None:
    """Clients without the token learn nothing about the server."""

    def problems() -> Iterator[str | None]:
        for name, address in servers.items():
            for method, path in (("POST", "/health"), ("GET", "/none"), ("POST", CHAT), ("GET", "/openapi.json")):
                status, _, said = ask(address, method, path)
                if any(route in said for route in ("/v1", "/retrieve", "/mcp", "/metrics")):
                    yield f"{name}, {method} {path}: {said[:110]}"
                elif status not in (401, 403):
                    yield f"{name}, {method} {path}: {status}"

    with both(version, STEPLADDER_TOKEN="open-sesame-0123456789") as servers:
        return listed(problems())


@attack("health while every answer fails")
def health_while_every_answer_fails(version: Version, _: Path) -> str | None:
    """A server whose model always fails does not call itself ok."""
    with (
        answering(lambda *_: (400, {"error": {"message": "broken"}})) as model,
        version.serving(*agent(version, model)) as (_, *address),
    ):
        where = (address[0], address[1])
        codes = [chat(where, f"Who designed tower {number}?") for number in range(6)]
        if any(code < 500 for code in codes):
            raise NotRun(f"the answers did not fail: {codes}")
        status, _, said = ask(where, "GET", "/health")
    return f"/health says {said.strip()} after {len(codes)} x {codes[0]}" if status == 200 else None
