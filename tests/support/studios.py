"""Studios on loopback, in a thread of this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepladder.serve.server_configs import StudioConfig
from stepladder.serve.studio.run_library import RunLibrary
from stepladder.serve.studio.studio_server import make_studio_app
from tests.support.http_servers import RunningServer, serving


@contextmanager
def running_studio(runs: Path, **settings: Any) -> Iterator[RunningServer]:
    """A studio of these runs, which looks at files often."""
    config = StudioConfig.read({"drain_seconds": 2, "refresh_seconds": 0.1, **settings})
    with serving(make_studio_app(RunLibrary(runs), config), config.drain_seconds, RunningServer) as server:
        yield server
