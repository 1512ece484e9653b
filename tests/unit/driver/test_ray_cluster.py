"""Ray clusters: what cannot work is an error before work starts. No cluster is started here."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stepladder.cli import main
from stepladder.core.errors import BackendDown, StepladderError
from stepladder.driver.cluster import RayConfig
from stepladder.driver.cluster.pool import WorkerPool
from stepladder.driver.cluster.worker_process import facts
from stepladder.pipeline.resources import SharedConfig
from tests.support.fake_ray import FakeRay, RayError, RayTaskError

pytest.importorskip("ray")
from stepladder.driver.cluster import connection, ray_cluster

NODE = {
    "Alive": True,
    "NodeID": "0" * 56,
    "NodeManagerHostname": "gpu-2",
    "NodeManagerAddress": "10.0.0.2",
    "Resources": {"CPU": 4.0, "GPU": 2.0},
}


class Echo:
    """A worker that returns its items."""

    def __init__(self, plan: Any) -> None:
        if plan is not None:
            raise StepladderError(plan)

    def work(self, items: Iterator[tuple[int, Any] | None]) -> Iterator[tuple[int, Any]]:
        yield from (item for item in items if item is not None)

    def report(self) -> None:
        """Nothing to report."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay([NODE, {**NODE, "Alive": False}])
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: made)
    return made


def opened(plan: str | None = None, **settings: Any) -> WorkerPool:
    config = RayConfig(**{"address": "10.0.0.1:6379", "workers": 2, **settings})
    return WorkerPool(ray_cluster.RayCluster(config).workers(f"{__name__}:Echo", plan))


def test_workers_of_a_cluster_that_passes_all_checks(ray: FakeRay) -> None:
    pool = opened()
    assert dict(pool.map("abcde", 2)) == dict(enumerate("abcde"))
    pool.close()
    assert len(ray.killed) == 2


OWN = facts()


@pytest.mark.parametrize(
    ("replies", "problem"),
    [
        (
            {"facts": replace(OWN, stepladder="0.0.1")},
            r"Ray node gpu-2 \(10.0.0.2\) has Stepladder 0.0.1, and this",
        ),
        ({"facts": replace(OWN, python="3.8")}, r"gpu-2 \(10.0.0.2\) has Python 3.8, and this process 3.\d+: install"),
        ({"facts": replace(OWN, missing=("/m",))}, r"gpu-2 \(10.0.0.2\) has no /m, which this machine has: every node"),
        ({"facts": None}, r"the Ray node gpu-2 \(10.0.0.2\) did not answer within 120 s"),
        ({"facts": RayError("ModuleNotFoundError: stepladder")}, r"gpu-2 \(10.0.0.2\) has no Stepladder that can be"),
        ({"facts": RayError("node is gone")}, r"gpu-2 \(10.0.0.2\) could not be asked: RayError: node is gone"),
        ({"open": RayTaskError(ValueError("broken"))}, r"the worker on .* failed: ValueError: broken"),
    ],
)
def test_nodes_and_workers_that_cannot_work_are_refused(ray: FakeRay, replies: dict[str, Any], problem: str) -> None:
    ray.replies = replies
    with pytest.raises((StepladderError, BackendDown), match=problem):
        opened()


def test_a_worker_that_cannot_open_its_model_says_where_and_why(ray: FakeRay) -> None:
    with pytest.raises(StepladderError) as error:
        opened("model path /models/qwen does not exist")
    assert f"the worker on {socket.gethostname()} (process " in str(error.value)
    assert str(error.value).endswith("cannot work: model path /models/qwen does not exist")
    assert len(ray.killed) == 2, "no worker is left behind"


def test_workers_that_die_or_find_no_place_before_work_starts(ray: FakeRay) -> None:
    ray.replies = {"open": RayError("killed for memory")}
    with pytest.raises(BackendDown, match=r"a worker died before it could work: .*killed for memory"):
        opened()
    local = RayConfig(workers=2)  # its node is this machine, and is not asked
    ray.replies = {"facts": None}
    with pytest.raises(StepladderError, match="only 0 of 2 workers found a place within 300 s: the cluster is busy"):
        WorkerPool(ray_cluster.RayCluster(local).workers(f"{__name__}:Echo", None))


@pytest.mark.parametrize(
    ("settings", "nodes", "problem"),
    [
        ({"gpus_per_worker": 2}, [{"CPU": 8, "GPU": 1}] * 2, "no node of the cluster has more than 1 GPUs (2 nodes"),
        ({"gpus_per_worker": 1}, [{"CPU": 8}], "no node of the cluster has more than 0 GPUs"),
        ({"gpus_per_worker": 1, "workers": 5}, [{"CPU": 8, "GPU": 2}] * 2, "has 4 GPUs: enough for 4 workers"),
        ({"workers": 9}, [{"CPU": 4}] * 2, "ray.workers is 9, and the cluster has 8 CPU cores"),
    ],
)
def test_a_cluster_that_is_too_small_is_refused(ray: FakeRay, settings: Any, nodes: Any, problem: str) -> None:
    ray.nodes_found = [{**NODE, "Resources": each} for each in nodes]
    with pytest.raises(StepladderError) as error:
        ray_cluster.RayCluster(RayConfig(**settings))
    assert problem in str(error.value)


def test_workers_fill_the_gpus_or_the_cores(ray: FakeRay) -> None:
    resources = [{"CPU": 4.0, "GPU": 3.0}, {"CPU": 4.0, "GPU": 1.0}]
    ray.nodes_found = [{**NODE, "Resources": each} for each in resources]
    for settings, count in (({"gpus_per_worker": 0.5}, 8), ({"gpus_per_worker": 2}, 1), ({}, 8), ({"workers": 3}, 3)):
        assert ray_cluster.RayCluster(RayConfig(**settings)).count == count


# --- the connection -----------------------------------------------------------------------------------------------


def test_ray_that_is_not_installed_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(StepladderError, match=r"workers on a cluster need Ray: .*pip install .*ray"):
        ray_cluster.RayCluster(RayConfig(workers=1))


def test_an_address_that_does_not_answer_is_an_error_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(StepladderError, match=rf"ray.address: nothing answers at 127.0.0.1:{port}"):
            ray_cluster.RayCluster(RayConfig(address=f"127.0.0.1:{port}"))


@pytest.mark.parametrize(("reply", "problem"), [(b"", "nothing answers at"), (b"HTTP/1.1 400", "is not a Ray cluster")])
def test_a_port_of_something_else_is_an_error_soon(monkeypatch: pytest.MonkeyPatch, reply: bytes, problem: str) -> None:
    monkeypatch.setattr(connection, "ADDRESS_SECONDS", 0.5 if not reply else 60)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as thread:
        accepted = thread.submit(server.accept)
        if reply:
            accepted.add_done_callback(lambda done: done.result()[0].sendall(reply))
        with pytest.raises(StepladderError, match=problem):
            ray_cluster.RayCluster(RayConfig(address=f"127.0.0.1:{server.getsockname()[1]}"))
        accepted.result()[0].close()


MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.50.0
    Python: 3.12.1
This process on node 10.0.0.1 was started with:
    Ray: 2.60.0
    Python: 3.11.15
"""


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (MISMATCH, "the cluster at auto has Ray 2.50.0 and Python 3.12.1, and this process Ray 2.60.0 and Python 3.11"),
        (
            "Could not find any running Ray instance.",
            "ray.address: no cluster at auto that this machine is part of: R",
        ),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_an_error(monkeypatch: pytest.MonkeyPatch, error: str, problem: str) -> None:
    import ray

    def refuse(**_: Any) -> None:
        raise RuntimeError(error)

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(StepladderError, match=problem):
        connection.connect(ray, RayConfig(address="auto"))


def test_ray_stores_no_secret_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import utils

    typed = "stepladder eval --index http://ann:secret-7@node:8000 --api-key abc"
    monkeypatch.setattr(utils, "get_entrypoint_name", lambda: typed)
    with connection._discreet():
        assert utils.get_entrypoint_name() == "stepladder eval --index http://***@node:8000 --api-key ***"
    assert utils.get_entrypoint_name() == typed


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "http://head:6379"])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    with pytest.raises(StepladderError, match="expected auto or HOST:PORT"):
        SharedConfig.read({"ray": {"address": address}})


def test_a_recipe_without_ray_does_not_mention_it() -> None:
    assert "ray" not in SharedConfig().plain()
    assert json.loads(json.dumps(SharedConfig.read({"ray": {"workers": 2}}).plain()))["ray"]["workers"] == 2


def test_a_command_says_that_the_address_does_not_answer_before_it_starts_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        command = ["explore", "--out", str(tmp_path / "run"), "--data", "atlas-small", "--ray", address]
        assert main(command) != 0
    assert f"nothing answers at {address}" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run" / "run.json").exists()
