"""Connections to Milvus: to a server by its address, or to milvus-lite, which runs inside this process on a folder.

In: an address, or a folder. Out: `Milvus`, whose `client` is pymilvus's own and whose errors say which Milvus it was.

milvus-lite lets one process at a time into a folder; inside that process everybody shares it, and the last one to close
stops it. The token for a server comes from the environment variable STEPLADDER_MILVUS_TOKEN and is kept nowhere.
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

TOKEN = "STEPLADDER_MILVUS_TOKEN"

#: Seconds that a server gets to take a connection, to answer what it can answer at once, and to do what takes time.
CONNECT_SECONDS, ANSWER_SECONDS, WORK_SECONDS = 10.0, 60.0, 1800.0


class MilvusError(StepladderError):
    """Milvus cannot be reached, or refuses what it is asked for."""


class Milvus:
    """A connection to Milvus: to the server at `uri`, else to milvus-lite on the `folder`."""

    def __init__(self, uri: str | None, folder: Path) -> None:
        library = _pymilvus()
        self._embedded = None if uri else _start(folder)
        self.where = f"Milvus at {uri}" if uri else f"Milvus in {folder}"
        address = self._embedded.address if self._embedded else uri
        token = os.environ.get(TOKEN, "") if uri else ""
        try:
            with self.explained():
                # Not shared: pymilvus would give the next server at the same port the connection of the last one.
                self.client: Any = library.MilvusClient(address, token=token, timeout=CONNECT_SECONDS, dedicated=True)
        except MilvusError as error:
            self._release()
            hint = f"check the token in {TOKEN}" if token else f"set {TOKEN} if it asks for a token"
            raise MilvusError(f"{error}. See whether it is running and the address is right, and {hint}") from error

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Errors inside are raised as `MilvusError`."""
        from grpc import RpcError  # type: ignore[import-untyped]

        try:
            yield
        except (_pymilvus().MilvusException, RpcError) as error:
            reason = getattr(error, "message", "") or str(error)
            raise MilvusError(f"{self.where}: {' '.join(reason.split())}") from error

    def close(self) -> None:
        """Let go of the connection, and of the folder."""
        self.client.close()
        self._release()

    def _release(self) -> None:
        if self._embedded:
            _stop(self._embedded)
            self._embedded = None


@dataclass(slots=True)
class _Embedded:
    """milvus-lite on a folder, and how many connections it has."""

    server: Any
    database: Any
    address: str
    users: int = 1


#: By the file that milvus-lite locks: a folder may be moved, and another one put in its place, while it is open.
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
                f"{folder} is open in another process, and milvus-lite lets in one at a time: wait for its end, share "
                "the index with `stepladder serve`, or build it in a Milvus server (uri)"
            ) from error
        except OSError as error:
            raise MilvusError(f"{folder} cannot be opened: {error}. milvus-lite must be able to write there") from error
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
        embedded.database.close()  # writes what is left, and lets go of the lock


def _identity(folder: Path) -> tuple[int, int]:
    try:
        found = (folder / "LOCK").stat()
    except FileNotFoundError:
        return (0, 0)  # of no file
    return found.st_dev, found.st_ino


def _pymilvus() -> Any:
    # gRPC tells the terminal about every fork of a process that uses it.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        import pymilvus  # type: ignore[import-untyped]
    except ImportError as error:
        raise _not_installed(error) from error
    _silence("pymilvus", "pymilvus.milvus_client")
    return pymilvus


def _silence(*loggers: str) -> None:
    """Keep from the terminal what libraries print there and also raise; handlers that are added later stay."""
    for logger in map(logging.getLogger, loggers):
        if not any(isinstance(each, logging.NullHandler) for each in logger.handlers):
            logger.handlers = [logging.NullHandler()]


def _not_installed(error: ImportError) -> StepladderError:
    return StepladderError(f"the kind milvus needs its libraries ({error}): {install_command('milvus')}")
