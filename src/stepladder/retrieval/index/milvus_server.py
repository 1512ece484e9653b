"""Connections to Milvus: to a server by address, or to milvus-lite, which runs inside this process on a folder.

In: an address, or a folder. Out: `Milvus`, with a pymilvus `client` and errors that name the instance.

milvus-lite allows one process per folder; within the process its connections share one instance, which stops when the
last one is closed. The token of a server is read from the environment variable STEPLADDER_MILVUS_TOKEN and not stored.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.known_servers import server_key, withheld

TOKEN = "STEPLADDER_MILVUS_TOKEN"

#: Timeouts in seconds: to connect, for quick requests, and for long operations.
CONNECT_SECONDS, ANSWER_SECONDS, WORK_SECONDS = 10.0, 60.0, 1800.0


class MilvusError(StepladderError):
    """Milvus cannot be reached, or rejects a request."""


class Milvus:
    """A connection to Milvus: to the server at `uri`, or else to milvus-lite on the `folder`."""

    def __init__(self, uri: str | None, folder: Path) -> None:
        library = _pymilvus()
        self._embedded = None if uri else _start(folder)
        self.where = f"Milvus at {uri}" if uri else f"Milvus in {folder}"
        address = self._embedded.address if self._embedded else uri
        token = server_key(TOKEN, uri) if uri else ""
        try:
            with self.wrap_errors():
                # dedicated: pymilvus would reuse the connection of an earlier server at the same port.
                self.client: Any = library.MilvusClient(address, token=token, timeout=CONNECT_SECONDS, dedicated=True)
        except MilvusError as error:
            self._release()
            hint = f"check the token in {TOKEN}" if token else f"set {TOKEN} if it requires a token"
            advice = f"Check that it is running and the address is right, and {hint}"
            raise MilvusError(f"{error}. {withheld(TOKEN, uri or '').strip() or advice}") from error

    @contextmanager
    def wrap_errors(self) -> Iterator[None]:
        """Raise pymilvus errors inside the block as `MilvusError`."""
        from grpc import RpcError  # type: ignore[import-untyped]

        try:
            yield
        except (_pymilvus().MilvusException, RpcError) as error:
            reason = getattr(error, "message", "") or str(error)
            raise MilvusError(f"{self.where}: {' '.join(reason.split())}") from error

    def call(self, method: str, *given: Any, seconds: float = ANSWER_SECONDS, **options: Any) -> Any:
        """Call a method of the client, with its errors as `MilvusError`."""
        with self.wrap_errors():
            return getattr(self.client, method)(*given, timeout=seconds, **options)

    def close(self) -> None:
        """Close the connection and release the folder."""
        self.client.close()
        self._release()

    def _release(self) -> None:
        if self._embedded:
            _stop(self._embedded)
            self._embedded = None


@dataclass(slots=True)
class _Embedded:
    """A milvus-lite instance on a folder, with its number of connections."""

    server: Any
    database: Any
    address: str
    users: int = 1


#: By the identity of milvus-lite's lock file: a folder may be moved and replaced while it is open.
_running: dict[tuple[int, int], _Embedded] = {}
_starting = threading.Lock()


def _start(folder: Path) -> _Embedded:
    try:
        from milvus_lite import DataDirLockedError  # type: ignore[import-untyped]
        from milvus_lite.adapter.grpc.server import start_server_in_thread  # type: ignore[import-untyped]
    except ImportError as error:
        raise _not_installed(error) from error
    _silence("milvus_lite", "grpc._server")
    with _starting:
        if found := _running.get(_identity(folder)):
            found.users += 1
            return found
        try:
            server, database, port = start_server_in_thread(str(folder))
        except DataDirLockedError as error:
            raise MilvusError(
                f"{folder} is open in another process, and milvus-lite allows one at a time: wait until it finishes, "
                "share the index with `stepladder serve`, or build it in a Milvus server (uri)"
            ) from error
        except OSError as error:
            raise MilvusError(f"{folder} cannot be opened: {error}. milvus-lite needs write access") from error
        started = _Embedded(server, database, f"http://127.0.0.1:{port}")
        _running[_identity(folder)] = started
        return started


def _stop(embedded: _Embedded) -> None:
    with _starting:
        embedded.users -= 1
        if embedded.users:
            return
        for identity in [each for each, running in _running.items() if running is embedded]:
            del _running[identity]
        embedded.server.stop(grace=None).wait()
        embedded.database.close()  # flushes, and releases the lock


def _identity(folder: Path) -> tuple[int, int]:
    try:
        found = (folder / "LOCK").stat()
    except FileNotFoundError:
        return (0, 0)  # matches no file
    return found.st_dev, found.st_ino


def _pymilvus() -> Any:
    # Otherwise gRPC prints a message for every fork.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        import pymilvus  # type: ignore[import-untyped]
    except ImportError as error:
        raise _not_installed(error) from error
    _silence("pymilvus", "pymilvus.milvus_client")
    return pymilvus


def _silence(*loggers: str) -> None:
    """Silence loggers whose messages are also raised as errors; handlers that are added later stay."""
    for logger in map(logging.getLogger, loggers):
        if not any(isinstance(each, logging.NullHandler) for each in logger.handlers):
            logger.handlers = [logging.NullHandler()]


def _not_installed(error: ImportError) -> StepladderError:
    return StepladderError(f"the index kind milvus needs its libraries ({error}): {install_command('milvus')}")
