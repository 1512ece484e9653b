"""A server on loopback that reads HTTP requests, and writes the bytes that a test says."""

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import IO

from tests.support.openai_server import says

#: Writes the response to the n-th request of all connections; False closes the connection after it.
Script = Callable[[IO[bytes], int], bool]


def body(text: str) -> bytes:
    return json.dumps(says(text, usage={"prompt_tokens": 30, "completion_tokens": 2}).body).encode()


def response(text: str = "fine", *fields: str, version: str = "1.1") -> bytes:
    head = "\r\n".join([f"HTTP/{version} 200 OK", f"Content-Length: {len(body(text))}", *fields])
    return f"{head}\r\n\r\n".encode() + body(text)


@dataclass
class RawServer:
    """Reads requests, and writes what the test says."""

    script: Script = lambda out, n: bool(out.write(response()))
    #: The heads of the requests, and the number of the connection each came on.
    heads: list[str] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)
    opened: int = 0
    port: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Released once for every connection that this server has closed.
    closed: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def talk(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        with self.lock:
            self.opened += 1
            number = self.opened
        try:
            with connection:
                while self._answer_one(connection, number, tls):
                    pass
        except OSError:  # the client hung up
            pass
        self.closed.release()

    def _answer_one(self, plain: socket.socket, number: int, tls: ssl.SSLContext | None) -> bool:
        connection = plain
        if tls is not None:
            connection = tls.wrap_socket(plain, server_side=True)
        with connection.makefile("rb") as read, connection.makefile("wb", 0) as out:
            while True:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    line = read.readline()
                    if not line:
                        return False
                    head += line
                length = re.search(rb"(?i)content-length: (\d+)", head)
                read.read(int(length[1]) if length else 0)
                with self.lock:
                    count = len(self.heads)
                    self.heads.append(head.decode("latin-1"))
                    self.connections.append(number)
                if not self.script(out, count):
                    return False


@contextmanager
def raw_server(
    script: Script | None = None, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[RawServer]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        server = RawServer(**({"script": script} if script else {}), port=listener.getsockname()[1])
        over = threading.Event()

        def accept() -> None:
            while not over.is_set():
                connection = listener.accept()[0]
                threading.Thread(target=server.talk, args=(connection, tls), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server
        over.set()
        with closing(socket.create_connection((host, server.port))):
            thread.join(5)
