"""HTTP apps on loopback, in a thread of this process."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from stepladder.serve.http.run_server import DrainingServer, listen


@dataclass
class RunningServer:
    """A server in a thread of this process, with a client."""

    url: str
    server: DrainingServer
    thread: threading.Thread
    client: httpx2.Client

    def metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.client.get("/metrics").text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def stop(self) -> None:
        self.server.drain()
        self.thread.join(20)
        assert not self.thread.is_alive()


Server = TypeVar("Server", bound=RunningServer)


@contextmanager
def serving(app: Any, drain_seconds: float, kind: type[Server]) -> Iterator[Server]:
    """Serve an app on a free port; stopped at the end."""
    server, listener = DrainingServer(app, drain_seconds), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx2.Client(base_url=url, trust_env=False, verify=False) as client:
        here = kind(url, server, thread, client)
        try:
            yield here
        finally:
            here.stop()
