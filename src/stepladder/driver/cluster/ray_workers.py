"""Workers on a Ray cluster: each is an actor, a process of its own (worker_process.py).

In: a connected `ray`, and what the workers open. Out: `RayWorkers`, for a `WorkerPool`. A worker that finds no place,
has another version or cannot open what it needs is an error before work starts.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from stepladder.core.errors import BackendDown, StepladderError
from stepladder.driver.cluster.connection import first_line
from stepladder.driver.cluster.pool import Call, Worker, WorkerDied
from stepladder.driver.cluster.worker_process import WorkerProcess

#: Seconds to wait for workers to be placed.
PLACE_SECONDS = 300.0
#: What is wrong with a node where Ray cannot import our modules.
NOT_IMPORTABLE = "has no Stepladder that can be imported: install the same version on every node"


def not_importable(error: Exception) -> bool:
    """Whether an error of Ray is that a node cannot import our modules."""
    return "ModuleNotFoundError" in str(error) or "failed to import" in str(error)


class RayWorkers:
    """Workers that open `target` (module:function) with a plan."""

    def __init__(self, ray: Any, count: int, gpus_per_worker: float, target: str, plan: Any) -> None:
        self.ray, self.count, self.gpus_per_worker = ray, count, gpus_per_worker
        self.target, self.plan = target, plan

    def start_all(self) -> list[Worker]:
        """Start all workers; an error of any of them is raised before work starts."""
        workers = [self.start() for _ in range(self.count)]
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
        actor = self.ray.remote(WorkerProcess).options(
            num_cpus=1, num_gpus=self.gpus_per_worker, max_restarts=0, max_task_retries=0
        )
        return RayWorker(self, actor.remote(own_process=True, gpus=self.gpus_per_worker > 0))

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
            found.check(found.node)


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
            raise BackendDown(f"the worker on {self.node} failed: {first_line(error.cause)}") from error
        except self.ray.exceptions.RayError as error:
            if not_importable(error):
                raise StepladderError(f"the worker on {self.node} {NOT_IMPORTABLE}") from error
            raise WorkerDied(f"the worker on {self.node} died ({first_line(error)})") from error


def _kill_all(workers: Sequence[RayWorker]) -> None:
    for worker in workers:
        worker.kill()
