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
    KILLED,
    LENGTHS,
    LOST,
    RECIPE,
    REFILLED,
    SCENARIOS,
    free_port,
    save_model,
    train_all,
    train_refilled,
    train_with_options,
)
from tests.support.shell import Shell
from tests.support.training_runs import plain_rows, weights

pytestmark = pytest.mark.slow  # many launches


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """The folder of all scenarios, the exit codes of their processes, and what these printed."""
    folder = tmp_path_factory.mktemp("launched")
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "tests.support.launches",
        str(folder),
        *(set(SCENARIOS) - {"one-gpu"}),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600, env=environment)
    return folder, json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in one process."""
    folder = tmp_path_factory.mktemp("alone")
    train_all(folder)
    return folder


def expect_same(one: Path, other: Path, model: str = "policy", gap: float = 1e-4) -> None:
    """Equal curves and weights, up to rounding. `gap`: the most between log-probs of the engine and the trainer."""
    for ours, theirs in zip(plain_rows(one), plain_rows(other), strict=True):
        assert max(each.pop("logprob_gap_max", 0.0) for each in (ours, theirs)) < gap  # is rounding itself
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    mine = weights(one / model)
    for name, tensor in weights(other / model).items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("trainer", LENGTHS)
def test_two_processes_train_as_one(launched: Any, alone: Path, trainer: str) -> None:
    """In SFT and GRPO one is killed; then the single one that resumes; then two resume."""
    folder, codes, printed = launched
    assert codes["ddp"][trainer] == ([[LOST, -9], [-9], [0, 0]] if trainer in KILLED else [[0, 0]]), printed
    expect_same(folder / "ddp" / trainer, alone / trainer, "reward" if trainer == "prm" else "policy")
    assert list((folder / "ddp" / trainer / "checkpoints").glob("*/optimizer.pt"))


@pytest.mark.parametrize("trainer", LENGTHS)
def test_two_processes_with_sharded_weights_train_as_one(launched: Any, alone: Path, trainer: str) -> None:
    """In SFT one process is killed, and a single one resumes, if it shards the weights too."""
    folder, codes, printed = launched
    assert codes["fsdp"] == [[LOST, -9], [FAILED], [0]], printed
    expect_same(folder / "fsdp" / trainer, alone / trainer, "reward" if trainer == "prm" else "policy")
    assert list((folder / "fsdp" / trainer / "checkpoints").glob("*/optimizer.bin"))


def test_a_lost_process_is_reported_once(launched: Any) -> None:
    _, _, printed = launched
    others = 2  # with FSDP2, and with refills
    message = "another process of this launch was killed, so process 0 of 2 ends too."
    assert printed.count(message) == len(KILLED) + others


def test_resumed_processes_are_quiet(launched: Any) -> None:
    """transformers warns of weights that a checkpoint has only once, since two layers share them."""
    _, _, printed = launched
    assert "missing keys" not in printed


def test_processes_share_the_samples_of_rft(launched: Any, alone: Path) -> None:
    folder, _, _ = launched
    for file in ("samples/00000.jsonl", "samples/00001.jsonl", "scores.jsonl", "survivors.json", "transcripts.jsonl"):
        assert (folder / "ddp" / "rft" / file).read_text() == (alone / "rft" / file).read_text()


def test_lora_gradient_checkpointing_and_vllm_with_sharded_weights(launched: Any, tmp_path: Path) -> None:
    """Each process has a vLLM, which gets whole weights."""
    folder, codes, printed = launched
    assert codes["options"] == [0, 0], printed
    save_model(tmp_path)
    train_with_options(tmp_path)
    expect_same(folder / "options" / "sft", tmp_path / "sft")
    expect_same(folder / "options" / "grpo", tmp_path / "grpo", gap=0.5)  # the engine is in bf16
    made = [json.loads((folder / "options" / f"vllm-{rank}.json").read_text()) for rank in (0, 1)]
    expected = {"gpu_memory_utilization": 0.3, "tensor_parallel_size": 1, "dtype": "bfloat16"}
    assert made[0] == made[1] == [{"distributed_executor_backend": "external_launcher", **expected}]
    assert json.loads((tmp_path / "vllm-0.json").read_text()) == [{"distributed_executor_backend": None, **expected}]


def test_processes_replace_questions_without_a_signal_and_stop_together(launched: Any, tmp_path: Path) -> None:
    folder, codes, printed = launched
    assert codes["refill"] == [[LOST, -9], [0, 0]], printed
    train_refilled(tmp_path, 0)
    expect_same(folder / "refill" / "grpo", tmp_path)
    rows = [row for row in plain_rows(tmp_path) if "loss" in row]
    assert sum(row["refilled"] for row in rows) > 0
    written = [row["written"] for row in rows]
    assert sum(written[:-1]) < REFILLED["token_budget"] <= sum(written)
    assert 3 <= len(rows) < 12, "before the schedule ends"


def test_checkpoints_of_fsdp_need_fsdp(launched: Any) -> None:
    _, _, printed = launched
    found = re.search(r"checkpoint-1 was written with FSDP, and this launch is without sharding; (.*)", printed)
    assert found is not None
    assert "Launch with recipes/launch/fsdp2.yaml, with any number of processes, or delete" in found[1]


def test_a_recipe_runs_in_the_main_process_and_trains_in_all(launched: Any) -> None:
    folder, codes, printed = launched
    assert codes["recipe"] == [[0, 0], [2, 2], [2, 2], [2, 2]], printed
    reports = [json.loads((folder / "recipe" / f"report-{rank}.json").read_text()) for rank in (0, 1)]
    assert reports[0] == reports[1] == {"stages": ["sft", "eval-sft"], "policy": f"{folder}/recipe/run/sft/policy"}
    assert len(json.loads((folder / "recipe" / "run" / "run.json").read_text())["sessions"]) == 1
    assert printed.count("eval-sft: starts") == 1


@pytest.mark.parametrize(
    "error", ["taken contains other files (mine.txt) and is not a run", "training stopped at update", "missing.yaml"]
)
def test_an_error_is_printed_once(launched: Any, error: str) -> None:
    """Of the main process alone; of all processes in training; of all before they are connected."""
    _, _, printed = launched
    assert " ".join(printed.split()).count(error) == 1, printed


def test_torchrun_with_a_killed_process(tmp_path: Path, shell: Shell) -> None:
    """A second launch in the same folder is refused; the run resumes with one process."""
    recipe, run = tmp_path / "recipe.yaml", tmp_path / "run"
    many = RECIPE.replace("dev_questions: 3", "dev_questions: 0, eval_steps: 2").replace("epochs: 1", "epochs: 8")
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
    assert printed.count("error: another process of this launch was killed") == 1
    done = max(checkpoints.complete)
    shell("run", recipe, "--out", run)
    assert done >= 2
    assert json.loads((run / "sft" / "stage.json").read_text())["attempts"] == 2
