"""Training in several processes ends with the weights of one; a process that is killed ends the others."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from stepladder.train.loop.checkpoints import Checkpoints
from tests.support import ROOT
from tests.support.launches import (
    FAILED,
    LOST,
    MAIN_FAILED,
    RECIPE,
    SCENARIOS,
    free_port,
    train_all,
    train_with_options,
)
from tests.support.shell import Shell
from tests.support.training_runs import plain_rows, weights

pytestmark = pytest.mark.slow  # six launches of two processes


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The folder of all scenarios, the exit codes of their processes, and what these printed."""
    folder = tmp_path_factory.mktemp("launched")
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.launches", str(folder), *SCENARIOS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600, env=environment)
    return folder, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in one process."""
    folder = tmp_path_factory.mktemp("alone")
    train_all(folder)
    return folder


def expect_same(one: Path, other: Path, model: str = "policy") -> None:
    """Equal curves and weights, up to rounding."""
    for ours, theirs in zip(plain_rows(one), plain_rows(other), strict=True):
        gap = {ours.pop("logprob_gap_max", 0.0), theirs.pop("logprob_gap_max", 0.0)}  # is rounding itself
        assert max(gap) < 1e-4
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    mine = weights(one / model)
    for name, tensor in weights(other / model).items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("trainer", ["sft", "prm", "dpo", "grpo"])
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_train_as_one(launched: Any, alone: Path, trainer: str, sharding: str) -> None:
    folder, codes, printed = launched
    assert codes[sharding] == [0, 0], printed
    expect_same(folder / sharding / trainer, alone / trainer, "reward" if trainer == "prm" else "policy")
    written = "optimizer.bin" if sharding == "fsdp" else "optimizer.pt"
    assert list((folder / sharding / trainer / "checkpoints").glob(f"*/{written}"))


def test_lora_and_gradient_checkpointing_with_sharded_weights(launched: Any, tmp_path: Path) -> None:
    folder, codes, printed = launched
    assert codes["options"] == [0, 0], printed
    train_with_options(tmp_path)
    for trainer in ("sft", "grpo"):
        expect_same(folder / "options" / trainer, tmp_path / trainer)


@pytest.mark.parametrize("sharding", ["killed", "killed-fsdp"])
def test_a_killed_process_ends_the_others_and_training_resumes(launched: Any, alone: Path, sharding: str) -> None:
    """Here with one process where there were two."""
    folder, codes, printed = launched
    killed, *refused, resumed = codes[sharding]
    assert killed == [LOST, -9], printed
    assert "so process 0 of 2 ends too; if it printed an error, that is above. The same command resumes" in printed
    assert resumed == [0], printed
    assert refused == ([[FAILED]] if sharding == "killed-fsdp" else [])
    assert Checkpoints(folder / sharding / "sft" / "checkpoints").complete == [6]
    expect_same(folder / sharding / "sft", alone / "sft")


def test_checkpoints_of_fsdp_need_fsdp(launched: Any) -> None:
    _, _, printed = launched
    found = re.search(r"checkpoint-3 was written with FSDP, and this launch is without sharding; (.*)", printed)
    assert found is not None
    assert "Launch with recipes/launch/fsdp2.yaml, with any number of processes, or delete" in found[1]


def test_a_recipe_runs_in_the_main_process_and_trains_in_all(launched: Any) -> None:
    folder, codes, printed = launched
    assert codes["recipe"] == [[0, 0], [FAILED, MAIN_FAILED]], printed
    reports = [json.loads((folder / "recipe" / f"report-{rank}.json").read_text()) for rank in (0, 1)]
    assert reports[0] == reports[1] == {"stages": ["sft", "eval-sft"], "policy": f"{folder}/recipe/run/sft/policy"}
    assert len(json.loads((folder / "recipe" / "run" / "run.json").read_text())["sessions"]) == 1
    assert printed.count("sft: starts") == 2  # and eval-sft
    assert "taken contains other files (mine.txt) and is not a run" in printed


def test_torchrun_with_a_killed_process(tmp_path: Path, shell: Shell) -> None:
    """A second launch in the same folder is refused; the run resumes with one process."""
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    many = RECIPE.replace("dev_questions: 3", "dev_questions: 0, eval_steps: 2").replace("epochs: 1", "epochs: 15")
    recipe.write_text(many)
    command = ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port(), "-m", "stepladder"]
    command += ["run", str(recipe), "--out", str(run)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True, env=environment
    ) as torchrun:
        checkpoints, ended = Checkpoints(run / "sft" / "checkpoints"), time.monotonic() + 120
        try:
            while not checkpoints.complete and time.monotonic() < ended and torchrun.poll() is None:
                time.sleep(0.1)
            refused = shell("run", recipe, "--out", run, code=2)
            workers = {each.environ().get("RANK"): each for each in psutil.Process(torchrun.pid).children()}
            workers["1"].kill()
            _, printed = torchrun.communicate(timeout=120)
        finally:
            torchrun.terminate()
    assert "is in use by process" in refused
    assert torchrun.returncode == 1
    assert "error: another process of this launch was killed or has failed, so process 0 of 2 ends too" in printed
    done = max(checkpoints.complete)
    shell("run", recipe, "--out", run)
    assert done >= 2
    assert json.loads((run / "sft" / "stage.json").read_text())["attempts"] == 2
