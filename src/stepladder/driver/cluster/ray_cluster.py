"""The connection to a Ray cluster, and workers on it.

In: `RayConfig`. Out: a `RayCluster`, which starts workers (pool.py). Everything that cannot work is an error before
work starts: an address that does not answer, too few GPUs or CPU cores, a node with another version of Stepladder or
without a file. Ray writes its own logs below /tmp/ray; nothing of the workers is printed here. There is no dashboard
and no usage report, and Ray stores neither settings nor command lines with secrets.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil  # type: ignore[import-untyped]

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.masking import mask_command
from stepladder.driver.cluster.config import RayConfig
from stepladder.driver.cluster.host import Facts, Host, facts
from stepladder.driver.cluster.pool import Call, Worker, WorkerDied

#: Seconds to wait for an address, for the nodes to describe themselves, and for workers to be placed.
ADDRESS_SECONDS, NODE_SECONDS, PLACE_SECONDS = 10.0, 60.0, 120.0
#: What a client of gRPC sends first, and the type of the frame that a server replies with.
_HTTP2_GREETING, _HTTP2_SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"\4"
#: A machine under load can miss Ray's own limit of 30 seconds for the start of its processes.
_STARTS = 3


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


class RayCluster:
    """A connected cluster. `paths`: files that every node of a worker must have."""

    def __init__(self, config: RayConfig, paths: Sequence[str] = ()) -> None:
        self.config = config
        self.ray = import_ray()
        self._own = not self.ray.is_initialized()
        if self._own:
            _connect(self.ray, config)
        try:
            self.nodes = [node for node in self.ray.nodes() if node["Alive"]]
            self.count = _worker_count(config, self.nodes)
            if config.address is not None:
                self._check_nodes(paths)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Disconnect; a cluster that was started here ends."""
        if self._own and self.ray.is_initialized():
            self.ray.shutdown()

    def workers(self, target: str, plan: Any) -> "RayWorkers":
        """Workers that open `target` (module:function) with this plan."""
        return RayWorkers(self, target, plan)

    def _check_nodes(self, paths: Sequence[str]) -> None:
        """Ask every node that may have a worker what it has."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ask = self.ray.remote(facts)
        asked = {}
        for node in self.nodes:
            if _fits(self.config, node):
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                asked[node_name(node)] = ask.options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(paths)
        for name, reply in asked.items():
            try:
                found = self.ray.get(reply, timeout=NODE_SECONDS)
            except self.ray.exceptions.GetTimeoutError as error:
                raise StepladderError(f"the Ray node {name} did not answer within {NODE_SECONDS:.0f} s") from error
            except self.ray.exceptions.RayError as error:
                raise StepladderError(_failed_task(name, error)) from error
            check_facts(found, name)


def node_name(node: dict[str, Any]) -> str:
    """A node as messages name it."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"


def check_facts(found: Facts, node: str) -> None:
    """Raise if a node has another version, or lacks a file."""
    own = facts()
    if found.stepladder != own.stepladder:
        raise StepladderError(
            f"the Ray node {node} has Stepladder {found.stepladder}, and this process {own.stepladder}: install the "
            "same version on every node"
        )
    if found.missing:
        raise StepladderError(
            f"the Ray node {node} has no {', '.join(found.missing)}, which this machine has: every node needs models, "
            "questions and indexes at the same paths, such as on a shared file system"
        )


def _connect(ray: Any, config: RayConfig) -> None:
    """Connect to the cluster at the address, or start one on this machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    logging.getLogger("ray").setLevel(logging.ERROR)
    try:
        with _masked_entry_point():
            if config.address is not None:
                _check_address(config.address)
                ray.init(address=config.address, **quiet)
            else:
                _start_local(ray, config, quiet)
    except StepladderError:
        raise
    except Exception as error:
        where = (
            "a Ray cluster on this machine did not start"
            if config.address is None
            else (f"ray.address: no Ray cluster at {config.address} that this machine is part of")
        )
        raise StepladderError(f"{where}: {_first_line(error)}") from error


def _start_local(ray: Any, config: RayConfig, quiet: dict[str, Any]) -> None:
    cores = max(config.workers or 0, os.cpu_count() or 1)
    for attempt in range(1, _STARTS + 1):
        before = psutil.Process().children()
        try:
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
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
def _masked_entry_point() -> Iterator[None]:
    """Ray stores the command line of the process that connects: without secrets."""
    from ray._private import utils

    original: Any = utils.get_entrypoint_name
    utils.get_entrypoint_name = lambda: " ".join(mask_command(original().split(" ")))
    try:
        yield
    finally:
        utils.get_entrypoint_name = original


def _worker_count(config: RayConfig, nodes: Sequence[dict[str, Any]]) -> int:
    """How many workers to start. Raises if the cluster has not enough for them."""
    gpus, cores = (sum(node["Resources"].get(kind, 0) for node in nodes) for kind in ("GPU", "CPU"))
    per_worker = config.gpus_per_worker
    if per_worker:
        most = max((node["Resources"].get("GPU", 0) for node in nodes), default=0)
        room = sum(int(node["Resources"].get("GPU", 0) / per_worker + 1e-9) for node in nodes)
        if per_worker > most:
            raise StepladderError(
                f"ray.gpus_per_worker is {per_worker:g}, and no node of the cluster has more than {most:g} GPUs "
                f"({len(nodes)} nodes, {gpus:g} GPUs)"
            )
        if config.workers is not None and config.workers > room:
            raise StepladderError(
                f"ray.workers is {config.workers} with {per_worker:g} GPUs each, and the cluster has {gpus:g} GPUs: "
                f"enough for {room} workers"
            )
        return config.workers or room
    if config.workers is not None and config.workers > cores:
        raise StepladderError(f"ray.workers is {config.workers}, and the cluster has {cores:g} CPU cores")
    return config.workers or max(int(cores), 1)


def _fits(config: RayConfig, node: dict[str, Any]) -> bool:
    resources = node["Resources"]
    return bool(resources.get("CPU", 0) >= 1 and resources.get("GPU", 0) >= config.gpus_per_worker)


class RayWorkers:
    """Workers of one piece of work."""

    def __init__(self, cluster: RayCluster, target: str, plan: Any) -> None:
        self.cluster, self.ray = cluster, cluster.ray
        self.target, self.plan = target, plan

    def start_all(self) -> list[Worker]:
        """Start all workers; an error of any of them is raised before work starts."""
        workers = [self.start() for _ in range(self.cluster.count)]
        try:
            self._check_placed(workers)
            opened = [worker.open() for worker in workers]
            for worker, call in zip(workers, opened, strict=True):
                if (problem := call.result()) is not None:
                    raise StepladderError(f"the worker on {worker.node} cannot work: {problem}")
        except WorkerDied as error:
            _kill_all(workers)
            raise BackendDown(f"a worker died before it could work: {error}") from error
        except BaseException:
            _kill_all(workers)
            raise
        return list(workers)

    def start(self) -> "RayWorker":
        """Start one worker."""
        actor = self.ray.remote(Host).options(
            num_cpus=1, num_gpus=self.cluster.config.gpus_per_worker, max_restarts=0, max_task_retries=0
        )
        return RayWorker(self, actor.remote(own_process=True, gpus=self.cluster.config.gpus_per_worker > 0))

    def wait(self, calls: Sequence[Call], timeout: float) -> list[Call]:
        """The calls that are done."""
        if not calls:
            time.sleep(timeout)
            return []
        by_reference = {call.reference: call for call in calls if isinstance(call, RayCall)}
        done, _ = self.ray.wait(list(by_reference), num_returns=1, timeout=timeout)
        if done and len(done) < len(by_reference):  # others may be done as well
            done, _ = self.ray.wait(list(by_reference), num_returns=len(by_reference), timeout=0)
        return [by_reference[each] for each in done]

    def _check_placed(self, workers: Sequence["RayWorker"]) -> None:
        """Wait until all workers run, and check what they are."""
        asked = {worker.actor.facts.remote(): worker for worker in workers}
        done, waiting = self.ray.wait(list(asked), num_returns=len(asked), timeout=PLACE_SECONDS)
        if waiting:
            raise StepladderError(
                f"only {len(done)} of {len(asked)} workers found a place within {PLACE_SECONDS:.0f} s: the cluster is "
                "busy with other work. Wait for it, or set fewer ray.workers"
            )
        for reference in done:
            found = RayCall(self.ray, reference, "a node").result()
            worker = asked[reference]
            worker.node, worker.process = f"{found.node} (process {found.process})", found.process
            check_facts(found, found.node)


class RayWorker:
    """A worker process, as an actor of Ray."""

    def __init__(self, workers: RayWorkers, actor: Any) -> None:
        self.workers, self.actor = workers, actor
        #: Where it runs, and the id of its process there; of a replacement not known.
        self.node, self.process = "a node", 0

    def open(self) -> "RayCall":
        """Open what the work needs."""
        return self._call(self.actor.open.remote(self.workers.target, self.workers.plan))

    def exchange(self, items: Sequence[tuple[int, Any]]) -> "RayCall":
        """Send items and wait for results."""
        return self._call(self.actor.exchange.remote(items))

    def kill(self) -> None:
        """End the process."""
        with suppress(Exception):  # it, or the cluster, may be gone
            self.workers.ray.kill(self.actor)

    def _call(self, reference: Any) -> "RayCall":
        return RayCall(self.workers.ray, reference, self.node)


class RayCall:
    """A call of an actor."""

    def __init__(self, ray: Any, reference: Any, node: str) -> None:
        self.ray, self.reference, self.node = ray, reference, node

    def result(self) -> Any:
        """What it returned; waits for it."""
        try:
            return self.ray.get(self.reference)
        except self.ray.exceptions.RayTaskError as error:
            raise BackendDown(f"the worker on {self.node} failed: {_first_line(error.cause)}") from error
        except self.ray.exceptions.RayError as error:
            if _not_installed(error):
                raise StepladderError(_failed_task(self.node, error)) from error
            raise WorkerDied(f"the worker on {self.node} died ({_first_line(error)})") from error


def _kill_all(workers: Sequence[RayWorker]) -> None:
    for worker in workers:
        worker.kill()


def _not_installed(error: Exception) -> bool:
    return "ModuleNotFoundError" in str(error) or "failed to import" in str(error)


def _failed_task(node: str, error: Exception) -> str:
    if _not_installed(error):
        return f"the Ray node {node} has no Stepladder that can be imported: install the same version on every node"
    return f"the Ray node {node} could not be asked: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}{': ' if lines else ''}{lines[0] if lines else ''}"[:300]
