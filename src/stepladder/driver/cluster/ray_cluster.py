"""A connected Ray cluster: its nodes are checked, and it starts workers (ray_workers.py).

In: `RayConfig`. Out: a `RayCluster`. Everything that cannot work is an error before work starts: too few GPUs or CPU
cores, a node with another version of Stepladder or Python, or without a file.
"""

from collections.abc import Sequence
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.driver.cluster.config import RayConfig
from stepladder.driver.cluster.connection import connect, first_line, import_ray
from stepladder.driver.cluster.ray_workers import NOT_IMPORTABLE, RayWorkers, not_importable
from stepladder.driver.cluster.worker_process import facts

#: Seconds to wait for the nodes to describe themselves.
NODE_SECONDS = 120.0


class RayCluster:
    """A connected cluster. `paths`: files that every node of a worker must have."""

    def __init__(self, config: RayConfig, paths: Sequence[str] = ()) -> None:
        self.config = config
        self.ray = import_ray()
        self._own = not self.ray.is_initialized()
        if self._own:
            connect(self.ray, config)
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
        return RayWorkers(self.ray, self.count, self.config.gpus_per_worker, target, plan)

    def _check_nodes(self, paths: Sequence[str]) -> None:
        """Ask every node that may have a worker what it has."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ask = self.ray.remote(facts)
        asked = {}
        for node in self.nodes:
            if _fits(self.config, node):
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                name = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
                asked[name] = ask.options(num_cpus=0, scheduling_strategy=there, max_retries=0).remote(paths)
        for name, reply in asked.items():
            try:
                found = self.ray.get(reply, timeout=NODE_SECONDS)
            except self.ray.exceptions.GetTimeoutError as error:
                raise StepladderError(f"the Ray node {name} did not answer within {NODE_SECONDS:.0f} s") from error
            except self.ray.exceptions.RayError as error:
                problem = NOT_IMPORTABLE if not_importable(error) else f"could not be asked: {first_line(error)}"
                raise StepladderError(f"the Ray node {name} {problem}") from error
            found.check(name)


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
