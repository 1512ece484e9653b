"""Servers of ours that the package talks to: a model, a search server. What they answer is up to the attack."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: The body of a request -> the status, the body of the response, and headers.
Answer = Callable[[str, dict[str, Any]], tuple[int, object] | tuple[int, object, dict[str, str]]]


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, content, *headers = server.answer(self.path, body)
        data = json.dumps(content).encode()
        with suppress(OSError):  # the client has gone
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **(headers[0] if headers else {})}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """A server in a thread; yields host and port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Request) as http:
        http.daemon_threads = True
        vars(http)["answer"] = answer
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def completion(text: str, usage: object = None) -> dict[str, Any]:
    """What an OpenAI-compatible server says."""
    message = {"role": "assistant", "content": text}
    counted = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18} if usage is None else usage
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": counted}


def prompt_of(body: dict[str, Any]) -> str:
    """All that the model was told."""
    return "\n".join(str(message["content"]) for message in body["messages"])


def found(text: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a search server says: one passage per query."""
    document = {"document": {"id": "7", "contents": f'"Orm Tower"\n{text}'}, "score": 1.0}
    return {"result": [[document] for _ in body["queries"]]}
