"""A stand-in for the Hugging Face hub on loopback: files by path, ranges, and downloads that break off."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What it serves, and what it was asked for."""

    url: str = ""
    #: Content by path.
    files: dict[str, bytes] = field(default_factory=dict)
    #: The connection is closed at this byte of every file; None serves all of it.
    breaks_after: int | None = None
    #: The hash it claims for every file, if it is not the right one.
    claimed: str = ""
    #: What every download gets instead, whole: the page of a proxy that wants a password.
    page: bytes = b""
    #: The first byte that each download asked for, by path.
    downloads: list[tuple[str, int]] = field(default_factory=list)

    def etag(self, path: str) -> str:
        """As on the hub: the SHA-256 of large files, the Git hash of small ones."""
        content = self.files[path]
        git = sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
        return self.claimed or (sha256(content).hexdigest() if "train" in path else git)


@contextmanager
def hub_server() -> Iterator[Hub]:
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, *, with_body: bool) -> None:
            content = hub.files.get(self.path)
            start = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
            if with_body and hub.page:
                content, start = hub.page, 0
            self.send_response(404 if content is None else 206 if start else 200)
            body = (content or b"")[start:]
            self.send_header("Content-Length", str(len(body)))
            if content is not None:
                self.send_header("X-Repo-Commit", "c" * 40)
                self.send_header("ETag", f'"{hub.etag(self.path)}"')
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if with_body and content is not None:
                hub.downloads.append((self.path, start))
                self.wfile.write(content[start : hub.breaks_after])
                self.close_connection = hub.breaks_after is not None

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
