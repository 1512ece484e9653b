"""Ray workers: the same results as one process, also when a worker is killed, and errors before work starts."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepladder.agents import Agent
from stepladder.core.errors import StepladderError
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Outcome
from stepladder.driver.cluster import RayConfig, host
from stepladder.driver.cluster.remote_driver import RemoteDriver
from stepladder.evaluation.evaluator import Evaluation, evaluate
from stepladder.explore.episode import episode
from stepladder.explore.tree_store import explore
from stepladder.pipeline.resources import ORACLE, RunContext, SharedConfig
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.spread.player import open_driver
from stepladder.pipeline.stages.explore import mcts_tree

ray_cluster = pytest.importorskip("stepladder.driver.cluster.ray_cluster")
pytest.importorskip("ray")
SHARED = {"policy": "tiny", "episode": {"max_steps": 3, "max_tokens": 12}, "ray": {"workers": 2}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local cluster of two workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        opened = ray_cluster.RayCluster(RayConfig(workers=2))
        try:
            yield opened
        finally:
            opened.close()


@pytest.fixture
def context(cluster: Any) -> RunContext:
    made = RunContext(SharedConfig.read(SHARED))
    made.cluster = cluster
    return made


def alone() -> RunContext:
    return RunContext(SharedConfig.read({**SHARED, "ray": None}))


def evaluated(context: RunContext, policy: str, count: int, watch: Any = None, **limits: int) -> Evaluation:
    with open_driver(context, policy, **limits) as driver:
        assert isinstance(driver, RemoteDriver) == (context.settings.ray is not None)
        questions = context.split("test")[:count]
        seen = partial(watch, driver) if watch is not None else None
        return evaluate(driver, context.agent, questions, context.episode(0.7), seed=3, watch=seen)


def test_an_evaluation_is_the_same_also_when_a_worker_is_killed(context: RunContext) -> None:
    expected = evaluated(alone(), ORACLE, 24)
    killed: list[int] = []

    def kill_once(driver: RemoteDriver, outcome: Outcome[Any]) -> None:
        if not killed:
            killed.append(driver.pool.workers[0].process)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)

    found = evaluated(context, ORACLE, 24, kill_once)
    assert killed
    assert found == expected
    assert found.upper_bound


def test_trees_are_the_same_file(context: RunContext, tmp_path: Path) -> None:
    settings = ExploreConfig(simulations=8, width=2)
    for name, one in (("one", alone()), ("ray", context)):
        questions = one.split("train")[:12]
        grow = partial(mcts_tree, one.agent, settings.search(one.episode()))
        with open_driver(one, ORACLE, in_flight=4) as driver:
            assert explore(driver, questions, grow, tmp_path / name, seed=1).made == 12
            assert driver.counts.asked["Generate"] >= 12
    assert (tmp_path / "ray").read_bytes() == (tmp_path / "one").read_bytes()


def deadly(agent: Agent, question: Question, settings: Any, fatal: str, seed: int) -> Algorithm[Trajectory]:
    """An episode; that of one question ends its process."""
    if question.id == fatal:
        os.kill(os.getpid(), signal.SIGKILL)
    return (yield from episode(agent, question, settings, seed))


def test_a_question_that_kills_its_worker_fails_alone(context: RunContext) -> None:
    import ray.cloudpickle

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    questions = context.split("test")[:6]
    fatal, limits = questions[2].id, replace(context.episode(), max_steps=4)
    jobs = [partial(deadly, context.agent, each, limits, fatal, seed_of(0, each.id)) for each in questions]
    with open_driver(context, ORACLE) as driver:
        outcomes = driver.run(jobs)
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert [outcome.index for outcome in outcomes if outcome.failure] == [2]
    failure = outcomes[2].failure
    assert failure is not None
    assert "died" in failure.reason
    assert all(outcome.value.stop is not None for outcome in outcomes if outcome.value is not None)


def test_a_worker_that_cannot_open_the_model_says_where_and_why(
    context: RunContext, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "count", 1)
    with pytest.raises(StepladderError) as error, open_driver(context, str(tmp_path / "missing")):
        pass
    assert f"the worker on {socket.gethostname()} (process " in str(error.value)
    assert f"model path {tmp_path}/missing does not exist" in str(error.value)


def test_a_worker_with_another_version_is_refused(context: RunContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "__version__", "9.9.9")
    with pytest.raises(StepladderError) as error, open_driver(context, ORACLE):
        pass
    assert f"the Ray node {socket.gethostname()} has Stepladder " in str(error.value)
    assert "and this process 9.9.9: install the same version on every node" in str(error.value)


def test_ray_stores_no_secret_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import utils

    typed = "stepladder eval --index http://ann:secret-7@node:8000 --api-key abc"
    monkeypatch.setattr(utils, "get_entrypoint_name", lambda: typed)
    with ray_cluster._masked_entry_point():
        assert utils.get_entrypoint_name() == "stepladder eval --index http://***@node:8000 --api-key ***"
    assert utils.get_entrypoint_name() == typed


@pytest.mark.parametrize(
    ("settings", "nodes", "problem"),
    [
        ({"gpus_per_worker": 2}, [{"CPU": 8, "GPU": 1}] * 2, "no node of the cluster has more than 1 GPUs (2 nodes"),
        ({"gpus_per_worker": 1}, [{"CPU": 8}], "no node of the cluster has more than 0 GPUs"),
        ({"gpus_per_worker": 1, "workers": 5}, [{"CPU": 8, "GPU": 2}] * 2, "has 4 GPUs: enough for 4 workers"),
        ({"workers": 9}, [{"CPU": 4}] * 2, "ray.workers is 9, and the cluster has 8 CPU cores"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(settings: Any, nodes: Any, problem: str) -> None:
    with pytest.raises(StepladderError) as error:
        ray_cluster._worker_count(RayConfig(**settings), [{"Resources": each} for each in nodes])
    assert problem in str(error.value)


def test_workers_fill_the_gpus_or_the_cores() -> None:
    nodes = [{"Resources": {"CPU": 4.0, "GPU": 3.0}}, {"Resources": {"CPU": 4.0, "GPU": 1.0}}]
    assert ray_cluster._worker_count(RayConfig(gpus_per_worker=0.5), nodes) == 8
    assert ray_cluster._worker_count(RayConfig(gpus_per_worker=2), nodes) == 1
    assert ray_cluster._worker_count(RayConfig(), nodes) == 8
    assert ray_cluster._worker_count(RayConfig(workers=3), nodes) == 3


def test_a_node_without_a_file_is_refused(tmp_path: Path) -> None:
    found = host.facts([str(tmp_path), str(tmp_path / "model")])
    with pytest.raises(StepladderError, match=r"the Ray node far \(10.0.0.9\) has no .*/model, which this machine has"):
        ray_cluster.check_facts(found, "far (10.0.0.9)")


def test_an_address_that_does_not_answer_is_an_error_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(StepladderError, match=rf"ray.address: nothing answers at 127.0.0.1:{port}"):
            ray_cluster._check_address(f"127.0.0.1:{port}")


@pytest.mark.parametrize(("reply", "problem"), [(b"", "nothing answers at"), (b"HTTP/1.1 400", "is not a Ray cluster")])
def test_a_port_of_something_else_is_an_error_soon(monkeypatch: pytest.MonkeyPatch, reply: bytes, problem: str) -> None:
    monkeypatch.setattr(ray_cluster, "ADDRESS_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        accepted = thread.submit(server.accept)
        if reply:
            accepted.add_done_callback(lambda done: done.result()[0].sendall(reply))
        with pytest.raises(StepladderError, match=problem):
            ray_cluster._check_address(f"127.0.0.1:{server.getsockname()[1]}")
        accepted.result()[0].close()


def test_the_port_of_a_cluster_is_accepted(cluster: Any) -> None:
    ray_cluster._check_address(cluster.ray.get_runtime_context().gcs_address)


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "http://head:6379"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(StepladderError, match="expected auto or HOST:PORT"):
        SharedConfig.read({"ray": {"address": address}})


def test_a_recipe_without_ray_does_not_mention_it() -> None:
    assert "ray" not in SharedConfig().plain()
    assert json.loads(json.dumps(SharedConfig.read(SHARED).plain()))["ray"]["workers"] == 2
