"""The connection of this process to a Ray cluster: to one that runs, or to one that is started here.

In: `RayConfig`. Out: the library `ray`, connected. An address that does not answer, or a cluster with another version
of Ray or Python, is an error. Ray writes its own logs below /tmp/ray; nothing of the workers is printed here. There is
no dashboard and no usage report, and Ray does not store secrets of the command line.
"""

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil  # type: ignore[import-untyped]

from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.masking import mask_command
from stepladder.driver.cluster.config import RayConfig

#: Seconds to wait for an address.
ADDRESS_SECONDS = 10.0
#: What a client of gRPC sends first, and the type of the frame that a server replies with.
_HTTP2_GREETING, _HTTP2_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"\4"
#: A machine under load can miss Ray's own limit of 30 seconds for the start of its processes.
_STARTS = 3
#: A cluster on this machine, which may be busy: patience with its processes, and workers with the priority of this
#: process. Ray's own is 15 lower, so that beside other programs workers would be slower than one process.
_SYSTEM = {
    "worker_niceness": 0,
    "worker_register_timeout_seconds": 600,
    "agent_register_timeout_ms": 600_000,
    "health_check_timeout_ms": 120_000,
}


def import_ray() -> Any:
    """The library, or an error with the command that installs it."""
    # Before the import: Ray reads some of them then. Logs of workers stay in files.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise StepladderError(f"workers on a cluster need Ray: {install_command('ray')}") from error
    return ray


def connect(ray: Any, config: RayConfig) -> None:
    """Connect to the cluster at the address, or start one on this machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _discreet():
            if config.address is None:
                _start_local(ray, config, quiet)
            else:
                _check_address(config.address)
                ray.init(address=config.address, **quiet)
    except StepladderError:
        raise
    except Exception as error:
        where = f"no cluster at {config.address} that this machine is part of"
        if config.address is None:
            where = "a cluster on this machine did not start"
        elif versions := re.findall(r"(Ray|Python): (\S+)", str(error)):
            raise StepladderError(f"ray.address: {_mismatch(config.address, versions)}") from error
        raise StepladderError(f"ray.address: {where}: {first_line(error)}") from error


def _mismatch(address: str, versions: list[tuple[str, str]]) -> str:
    """The error of a cluster with other versions. Ray lists its versions, then ours."""
    half = len(versions) // 2
    its, ours = (" and ".join(map(" ".join, some)) for some in (versions[:half], versions[half:]))
    return f"the cluster at {address} has {its}, and this process {ours}: install the same versions on every node"


def _start_local(ray: Any, config: RayConfig, quiet: dict[str, Any]) -> None:
    cores = config.workers or os.cpu_count() or 1
    for attempt in range(1, _STARTS + 1):
        before = psutil.Process().children()
        try:
            ray.init(address="local", num_cpus=cores, include_dashboard=False, _system_config=_SYSTEM, **quiet)
            return
        except Exception as error:
            ray.shutdown()
            for child in psutil.Process().children():  # Ray keeps those of a failed start until this process ends
                if child not in before:
                    with suppress(psutil.Error):
                        child.kill()
            if attempt == _STARTS or "timed out" not in str(error):
                raise


def _check_address(address: str) -> None:
    """Raise if no gRPC server answers there: Ray itself would try for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    advice = "`ray start --head` prints the address of a cluster; without an address one is started on this machine"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=ADDRESS_SECONDS) as connection:
            if os.environ.get("RAY_USE_TLS", "0") in ("1", "true"):
                return
            connection.sendall(_HTTP2_GREETING)
            reply = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise StepladderError(f"ray.address: nothing answers at {address} ({error}). {advice}") from error
    if reply[3:4] != _HTTP2_SETTINGS:
        raise StepladderError(f"ray.address: what answers at {address} is not a Ray cluster. {advice}")


@contextmanager
def _discreet() -> Iterator[None]:
    """Within, Ray connects so that it stores no secret of the command line, and prints nothing about dead workers.

    There is no public setting for either; it would print to standard output.
    """
    from ray._private import utils, worker

    entry_point: Any = utils.get_entrypoint_name
    listen = worker.listen_error_messages
    utils.get_entrypoint_name = lambda: " ".join(mask_command(entry_point().split(" ")))
    worker.listen_error_messages = lambda *_: None
    try:
        yield
    finally:
        utils.get_entrypoint_name, worker.listen_error_messages = entry_point, listen


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}{': ' if lines else ''}{lines[0] if lines else ''}"[:300]
