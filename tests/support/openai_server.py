"""An HTTP server on loopback that answers as an OpenAI server does, well, badly or not at all."""

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Answer:
    """What the server sends back."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    #: Announce the whole body but close the connection halfway through it.
    breaks_off: bool = False
    #: Send blanks for ever, as gateways do to keep a connection open.
    trickles: bool = False
    #: Send the body again and again without end, as fast as the client takes it.
    endless: bool = False


def says(text: Any, finish: str | None = "stop", *, usage: Any = None, **choice: Any) -> Answer:
    """A completion that both APIs can read."""
    message = {"role": "assistant", "content": text}
    return Answer(
        body={
            "choices": [{"index": 0, "message": message, "text": text, "finish_reason": finish, **choice}],
            "usage": usage,
        }
    )


def says_all(texts: Sequence[str], *, usage: Any = None) -> Answer:
    """A completion with several choices."""
    choices = [says(text).body["choices"][0] | {"index": number} for number, text in enumerate(texts)]
    return Answer(body={"choices": choices, "usage": usage})


def fails(status: int, message: str = "", *, headers: dict[str, str] | None = None, **error: Any) -> Answer:
    return Answer(status, {"error": {"message": message, **error}}, headers or {})


@dataclass
class Server:
    """A server whose behaviour a test sets: `answer(body, n)` is called for the n-th request, from 0."""

    answer: Callable[[dict[str, Any], int], Answer] = lambda body, n: says("fine")
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    #: The requests that got an answer.
    answered: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    #: A killed server: open connections break, new ones are refused.
    dead: bool = False
    headers: list[dict[str, str]] = field(default_factory=list)
    #: Bytes that were sent without end.
    sent: int = 0
    in_flight: int = 0
    peak: int = 0
    lock: threading.Condition = field(default_factory=threading.Condition)
    #: Set at the end of a test, so that handlers that hang let go.
    over: threading.Event = field(default_factory=threading.Event)
    #: Mistakes of the tests themselves.
    problems: list[BaseException] = field(default_factory=list)

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
            self.paths.append(handler.path)
            self.keys.append(handler.headers["Authorization"])
            self.headers.append(dict(handler.headers))
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
            self.lock.notify_all()
        answer = self.answer(body, number)
        if self.dead:
            handler.close_connection = True
            return
        self.answered.append(body)
        payload = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        with self.lock:
            self.in_flight -= 1  # before the answer leaves: the client may call again as soon as it has it
        handler.send_response(answer.status)
        for name, value in {"Content-Type": "application/json", **answer.headers}.items():
            handler.send_header(name, value)
        if not answer.endless and "Content-Length" not in answer.headers:
            handler.send_header("Content-Length", str(len(payload) + 10_000 * answer.trickles))
        handler.end_headers()
        while answer.endless and not self.over.is_set():
            handler.wfile.write(payload)
            self.sent += len(payload)
        while answer.trickles and not self.over.wait(0.02):
            handler.wfile.write(b" ")
        handler.wfile.write(payload[: len(payload) // 2] if answer.breaks_off else payload)
        handler.close_connection = answer.breaks_off

    def die(self) -> None:
        """From now on it is gone, as after kill -9."""
        self.dead = True
        self.close_listener()

    close_listener: Callable[[], None] = lambda: None

    def hang(self) -> Answer:
        self.over.wait(20)
        return says("too late")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.lock:
            assert self.lock.wait_for(condition, timeout=10)


@contextmanager
def running_server() -> Iterator[Server]:
    """A server on a free port."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            state.handle(self)

        def log_message(self, *_: object) -> None:
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *_: object) -> None:
            error = sys.exc_info()[1]
            if error and not isinstance(error, ConnectionError):  # clients that hang up are part of the tests
                state.problems.append(error)

    with Quiet(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_port}/v1"
        state.close_listener = lambda: http.socket.close()
        yield state
        state.over.set()
        http.shutdown()
        thread.join()
    assert not state.problems


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with running_server() as state:
        yield state


@pytest.fixture
def second_server(server: Server) -> Iterator[Server]:
    with running_server() as state:
        yield state
