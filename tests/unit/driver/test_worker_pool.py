"""Pools of workers: every item has one result, whatever happens to workers."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from stepladder.core.errors import BackendDown
from stepladder.driver.cluster.pool import Lost, WorkerDied, WorkerPool
from stepladder.driver.cluster.worker_process import Reply, WorkerProcess

#: In place of the reply of a call that is never done.
NEVER = "never"


class Returned:
    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class PlainWorker:
    """Doubles one item per call; dies of the items in `deadly`."""

    def __init__(self, workers: "PlainWorkers") -> None:
        self.workers = workers
        self.items: dict[int, int] = {}
        self.largest = self.done = 0
        self.killed = False

    def open(self) -> Returned:
        return Returned(self.workers.problem)

    def exchange(self, items: Sequence[tuple[int, Any]]) -> Returned:
        self.items.update(items)
        self.largest = max(self.largest, len(self.items))
        for value in self.items.values():
            if value in self.workers.deadly:
                self.workers.deadly[value] -= 1
                self.workers.deadly = {each: left for each, left in self.workers.deadly.items() if left > 0}
                return Returned(WorkerDied(f"killed by {value}"))
        number, value = next(iter(self.items.items()))
        del self.items[number]
        self.done += 1
        error = "the engine is gone" if value in self.workers.down else None
        return Returned(Reply(((number, 2 * value),), self.done, error))

    def kill(self) -> None:
        self.killed = True


class PlainWorkers:
    def __init__(self, count: int, deadly: dict[int, int] | None = None) -> None:
        self.count = count
        #: By item: how many workers it kills.
        self.deadly = dict(deadly or {})
        self.down: set[int] = set()
        self.problem: str | None = None
        self.started: list[PlainWorker] = []

    def start_all(self) -> list[Any]:
        return [self.start() for _ in range(self.count)]

    def start(self) -> PlainWorker:
        self.started.append(PlainWorker(self))
        return self.started[-1]

    def wait(self, calls: Sequence[Any], timeout: float) -> list[Any]:
        return [call for call in calls if call.value != NEVER]


def doubled(pool: WorkerPool, count: int, window: int = 4) -> dict[int, Any]:
    results = list(pool.map(range(count), window))
    assert len(results) == count
    return dict(results)


def test_every_item_is_run_once_and_all_workers_take_part() -> None:
    workers = PlainWorkers(3)
    pool = WorkerPool(workers)
    assert doubled(pool, 50) == {index: 2 * index for index in range(50)}
    assert doubled(pool, 7) == {index: 2 * index for index in range(7)}, "a pool maps again"
    assert sum(worker.done for worker in workers.started) == 57
    assert min(worker.done for worker in workers.started) >= 15
    assert max(worker.largest for worker in workers.started) <= 4, "no more than the window"
    assert sum(pool.reports.values()) == 57
    assert doubled(pool, 0) == {}
    pool.close()
    assert all(worker.killed for worker in workers.started)


def test_few_items_are_shared_out() -> None:
    workers = PlainWorkers(3)
    doubled(WorkerPool(workers), 6, window=100)
    assert [worker.done for worker in workers.started] == [2, 2, 2]


def test_a_worker_that_dies_is_replaced_and_its_items_are_run_again() -> None:
    workers = PlainWorkers(2, deadly={5: 1, 9: 1})
    pool = WorkerPool(workers)
    assert doubled(pool, 30) == {index: 2 * index for index in range(30)}
    assert (pool.deaths, len(workers.started), len(pool)) == (2, 4, 2)


def test_only_the_item_that_kills_its_workers_is_lost() -> None:
    pool = WorkerPool(PlainWorkers(2, deadly={5: 100}))
    results = doubled(pool, 30)
    lost = results.pop(5)
    assert results == {index: 2 * index for index in range(30) if index != 5}
    assert lost == Lost("two workers died with it, the second with nothing else: killed by 5")
    assert pool.deaths == 2, "it is run again once"


def test_a_single_item_is_lost_when_its_second_worker_dies() -> None:
    assert isinstance(doubled(WorkerPool(PlainWorkers(1, deadly={0: 100})), 1)[0], Lost)


def test_results_of_items_that_were_given_up_are_dropped() -> None:
    pool = WorkerPool(PlainWorkers(2))
    next(pool.map(range(20), 4))
    assert dict(pool.map(range(100, 110), 4)) == {index: 2 * (100 + index) for index in range(10)}


def test_a_pool_whose_workers_all_die_is_down() -> None:
    workers = PlainWorkers(2, deadly=dict.fromkeys(range(100), 100))
    with pytest.raises(BackendDown, match="7 workers in a row died before they had a result: killed by"):
        doubled(WorkerPool(workers), 100)


def test_an_engine_that_goes_down_ends_the_run_with_its_reason() -> None:
    workers = PlainWorkers(2)
    workers.down = {3}
    with pytest.raises(BackendDown, match="the engine is gone"):
        doubled(WorkerPool(workers), 10)


def test_the_others_go_on_without_a_worker_that_cannot_be_replaced() -> None:
    workers = PlainWorkers(2, deadly={3: 1})
    pool = WorkerPool(workers)
    workers.problem = "no memory"
    assert doubled(pool, 20) == {index: 2 * index for index in range(20)}
    assert len(pool) == 1
    workers.deadly = {3: 1}
    with pytest.raises(BackendDown, match="no worker is left: no memory"):
        doubled(pool, 20)


def test_the_others_go_on_without_a_replacement_that_never_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = PlainWorkers(2, deadly={3: 1})
    pool = WorkerPool(workers)
    workers.problem = NEVER
    monkeypatch.setattr("stepladder.driver.cluster.pool._REPLACE_SECONDS", 0.0)
    assert doubled(pool, 20) == {index: 2 * index for index in range(20)}
    assert len(pool) == 1
    workers.deadly = {3: 1}
    with pytest.raises(BackendDown, match="no worker is left: a worker could not be replaced within 0 s"):
        doubled(pool, 20)


# --- the process of a worker --------------------------------------------------------------------------------


class Doubler:
    """Waits for a second item before it returns the first, and fails at a negative one."""

    def __init__(self, plan: Any) -> None:
        if plan == "bad":
            raise ValueError("bad plan with api_key=abcdef123456")
        self.seen = 0

    def work(self, items: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[int, Any]]:
        held: list[tuple[int, Any]] = []
        for item in items:
            if item is None:
                continue
            self.seen += 1
            if item[1] < 0:
                raise RuntimeError("a negative item")
            held.append((item[0], 2 * item[1]))
            if len(held) == 2:
                yield held.pop(0)
                yield held.pop(0)

    def report(self) -> int:
        return self.seen


TARGET = f"{__name__}:Doubler"


def test_a_process_works_on_while_results_travel() -> None:
    process = WorkerProcess()
    assert process.open(TARGET, "good") is None
    replies = [process.exchange([(0, 5), (1, 6), (2, 7)]), process.exchange([(3, 8)]), process.exchange([])]
    assert [dict(reply.results) for reply in replies] == [{0: 10, 1: 12}, {2: 14}, {3: 16}]
    assert (replies[-1].report, replies[-1].error) == (4, None)


def test_a_process_says_why_it_cannot_work_and_hides_secrets() -> None:
    problem = WorkerProcess().open(TARGET, "bad")
    assert problem == "ValueError: bad plan with api_key=***"
    process = WorkerProcess()
    process.open(TARGET, "good")
    reply = process.exchange([(0, -1)])
    assert (reply.results, reply.error) == ((), "RuntimeError: a negative item")
