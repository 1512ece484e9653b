"""A real Ray cluster: the same results as one process, also when a worker is killed, and checks of its nodes.

The oracle plays, so that workers import no models. All tests share one cluster on this machine.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stepladder.core.errors import StepladderError
from stepladder.driver import Driver, Outcome
from stepladder.driver.cluster import RayConfig, worker_process
from stepladder.driver.cluster.remote_driver import RemoteDriver
from stepladder.evaluation.evaluator import Evaluation, evaluate
from stepladder.explore.tree_store import explore
from stepladder.pipeline.resources import ORACLE, RunContext, SharedConfig
from stepladder.pipeline.search_config import ExploreConfig
from stepladder.pipeline.stages.explore import mcts_tree
from stepladder.pipeline.workers.rollout_workers import open_driver

pytest.importorskip("ray")
from stepladder.driver.cluster.connection import _check_address
from stepladder.driver.cluster.ray_cluster import RayCluster

SHARED = {"policy": "tiny", "data": {"name": "atlas-small"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayCluster]:
    """A local cluster of three workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        with closing(RayCluster(RayConfig(workers=3))) as opened:
            yield opened


def kill_one(driver: Driver, killed: list[int], outcome: Outcome[Any]) -> None:
    """Kill a worker, once."""
    if not killed:
        assert isinstance(driver, RemoteDriver)
        killed.append(driver.pool.workers[0].process)  # type: ignore[attr-defined]
        os.kill(killed[0], signal.SIGKILL)


def played(driver: Driver, context: RunContext, trees: Path, *, kill: bool = False) -> tuple[Evaluation, bytes]:
    """An evaluation, and a file of trees. `kill`: a worker, after the first tree."""
    result = evaluate(driver, context.agent, context.split("test")[:24], context.episode(0.7), seed=3)
    rules = ExploreConfig(simulations=6, width=2).search(context.episode())
    grow = partial(mcts_tree, context.agent, rules)
    questions = context.split("train")[:18]
    watch = partial(kill_one, driver, []) if kill else None
    assert explore(driver, questions, grow, trees, seed=1, watch=watch).made == len(questions)
    return result, trees.read_bytes()


def test_results_are_those_of_one_process_also_when_a_worker_is_killed(
    cluster: RayCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one, several = (RunContext(SharedConfig.read({**SHARED, "ray": ray})) for ray in (None, {"workers": 3}))
    with open_driver(one, ORACLE) as driver:
        expected = played(driver, one, tmp_path / "one")
    assert expected[0].upper_bound
    several.cluster = cluster
    with open_driver(several, ORACLE) as driver:
        assert isinstance(driver, RemoteDriver)
        assert len(driver.pool) == 3
        assert {os.getpriority(os.PRIO_PROCESS, each.process) for each in driver.pool.workers} == {os.nice(0)}  # type: ignore[attr-defined]
        assert played(driver, several, tmp_path / "three") == expected
        assert driver.pool.deaths == 0
        assert played(driver, several, tmp_path / "killed", kill=True) == expected
        assert driver.pool.deaths == 1
        assert driver.counts.asked["Generate"] > 0
    printed = capfd.readouterr()
    assert "raylet" not in printed.out + printed.err
    assert "1 workers died; their questions were run again" in printed.err


def test_nodes_without_a_file_or_with_another_version_are_refused(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = cluster.ray.get_runtime_context().gcs_address
    _check_address(address)
    config = RayConfig(address=address, workers=1)
    RayCluster(config, [str(tmp_path)])
    with pytest.raises(StepladderError, match=r"the Ray node .* has no .*/model, which this machine has"):
        RayCluster(config, [str(tmp_path / "model")])
    monkeypatch.setattr(worker_process, "__version__", "9.9.9")
    with pytest.raises(StepladderError, match=r"the Ray node .* has Stepladder .*, and this process 9.9.9: install"):
        RayCluster(config)
    assert cluster.ray.is_initialized(), "a cluster that was connected before stays so"
