"""Search servers on loopback, in threads and in processes of their own."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from http.client import HTTPResponse
from typing import Any

import httpx2

from stepladder.core.trace import Passage
from stepladder.retrieval.base import Retriever
from stepladder.serve.search.search_server import make_app
from stepladder.serve.server_configs import ServerConfig
from tests.support import ROOT
from tests.support.http_servers import RunningServer, serving
from tests.support.samples import WordRetriever

INFO = {"kind": "bm25", "passages": 3, "checksum": "abc", "settings": {"k1": 1.2}}
TOWER, TARN = "Who designed Orm Tower?", "Where was Ada Tarn born?"


class Running(RunningServer):
    """A search server."""

    def ask(self, *queries: Any, timeout: float = 20, **others: Any) -> httpx2.Response:
        return self.client.post("/retrieve", json={"queries": list(queries), **others}, timeout=timeout)


@contextmanager
def running(retriever: Retriever, **settings: Any) -> Iterator[Running]:
    chosen = ServerConfig.read({"drain_seconds": 5, **settings})
    with serving(make_app(retriever, chosen, INFO), chosen.drain_seconds, Running) as here:
        yield here


class HeldRetriever(WordRetriever):
    """Searches no batch before it is let go; says when one has begun."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.begun = threading.Event(), threading.Event()

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Passage, ...]]:
        self.begun.set()
        assert self.go.wait(20)
        return [
            tuple(Passage(each.id, each.title, each.text, 1.0) for each in found)
            for found in super().search(queries, k)
        ]


@contextmanager
def child(script: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Python in a process of its own, which does not outlive the test."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def spoken(server: RunningServer, *parts: bytes, pause: float = 0.0) -> httpx2.Response:
    """What the server answers to bytes that no client would send, or not like this."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=15) as connection:
        with suppress(OSError):  # the server may hang up in the middle
            for part in parts:
                connection.sendall(part)
                time.sleep(pause)
        with HTTPResponse(connection) as reply:
            reply.begin()
            asked = httpx2.Request("POST", f"{server.url}/retrieve")
            answer = httpx2.Response(reply.status, headers=reply.getheaders(), content=reply.read(), request=asked)
            answer.elapsed = timedelta()
            return answer


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


POST = b"POST /retrieve HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n"
