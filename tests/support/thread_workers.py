"""Workers in threads of this process, in place of a Ray cluster: the same hosts, without the processes."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.driver.cluster.worker_process import WorkerProcess


class ThreadWorker:
    def __init__(self, workers: "ThreadWorkers") -> None:
        self.workers, self.process = workers, WorkerProcess()

    def open(self) -> "Future[Any]":
        return self.workers.threads.submit(self.process.open, self.workers.target, self.workers.plan)

    def exchange(self, items: Sequence[tuple[int, Any]]) -> "Future[Any]":
        return self.workers.threads.submit(self.process.exchange, items)

    def kill(self) -> None:
        """A thread ends with its process."""


class ThreadWorkers:
    def __init__(self, count: int, target: str, plan: Any) -> None:
        self.count, self.target, self.plan = count, target, plan
        self.threads = ThreadPoolExecutor(count)

    def start_all(self) -> list[Any]:
        started = [self.start() for _ in range(self.count)]
        for worker in started:
            if (problem := worker.open().result()) is not None:
                raise StepladderError(problem)
        return started

    def start(self) -> ThreadWorker:
        return ThreadWorker(self)

    def wait(self, calls: Sequence[Any], timeout: float) -> list[Any]:
        return list(wait(calls, timeout, FIRST_COMPLETED).done)


class ThreadCluster:
    """In place of a `RayCluster`."""

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.opened: list[str] = []

    def workers(self, target: str, plan: Any) -> ThreadWorkers:
        self.opened.append(target)
        return ThreadWorkers(self.count, target, plan)

    def close(self) -> None:
        """Nothing to close."""
