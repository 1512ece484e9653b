"""Training that is killed goes on from its last checkpoint and ends with the weights of an undisturbed run."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from stepladder.train.loop.checkpoints import Checkpoints
from stepladder.train.loop.metrics_log import read_metrics
from tests.support import ROOT, dpo_training, grpo_training, prm_training, sft_training
from tests.support.training_runs import losses, plain_rows, updates, weights

pytestmark = pytest.mark.slow  # four trainers, each of them three times
TRAINERS = ("dpo", "grpo", "prm", "sft")
#: Every trainer in a process of its own, forked from one that has imported all of them.
KILLED = """
import json, os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from tests.support import dpo_training, grpo_training, prm_training, sft_training

def watch(outcome):  # the checkpoint is behind, and more would be lost
    global updates
    updates += isinstance(outcome.value, float)
    if (outcome.index + 1 if name in ("grpo", "prm") else updates) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

ends, updates = {}, 0
for name in sys.argv[2:]:
    if os.fork() == 0:
        globals()[name + "_training"].train(Path(sys.argv[1]) / name, watch=watch)
        os._exit(0)
    ends[name] = os.waitstatus_to_exitcode(os.wait()[1])
print(json.dumps(ends))
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of every trainer, killed after a checkpoint."""
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-c", KILLED, str(folder), *TRAINERS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(TRAINERS, -signal.SIGKILL), done.stderr
    return folder


def assert_close(one: Path, other: Path, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], rtol=rtol, atol=atol)


def test_sft_goes_on(killed: Path, tmp_path: Path) -> None:
    folder, whole = killed / "sft", sft_training.train(tmp_path)
    assert Checkpoints(folder / "checkpoints").complete == [3]
    assert not (folder / "policy").exists()
    made = (folder / "transcripts.jsonl").stat().st_mtime_ns
    # As if it had been killed once more, in the middle of writing a checkpoint and the curves of a later update.
    (folder / "checkpoints" / "checkpoint-4").mkdir()
    (folder / "checkpoints" / "checkpoint-4" / "model.safetensors").write_bytes(b"half")
    with (folder / "curves.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 0.0}\n')

    steps: list[int] = []
    report = sft_training.train(folder, watch=lambda outcome: steps.append(outcome.index + 1))
    assert steps == [4, 5, 6]
    assert (folder / "transcripts.jsonl").stat().st_mtime_ns == made
    assert Checkpoints(folder / "checkpoints").complete == [6]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["checkpoint-6"]

    def rows(folder: Path) -> list[dict[str, Any]]:
        curves = read_metrics(folder / "curves.jsonl")
        return [{name: value for name, value in row.items() if "seconds" not in name} for row in curves]

    for ours, theirs in zip(rows(folder), rows(tmp_path), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert_close(report.policy, whole.policy)


def test_prm_training_goes_on(killed: Path, tmp_path: Path) -> None:
    folder, whole = killed / "prm", prm_training.train(tmp_path)
    assert Checkpoints(folder / "checkpoints").complete == [4]
    assert not (folder / "reward").exists()
    done: list[int] = []
    report = prm_training.train(folder, watch=lambda outcome: done.append(outcome.index + 1))
    assert done == list(range(5, 17))
    assert losses(folder) == pytest.approx(losses(tmp_path), rel=1e-3)
    assert_close(report.reward, whole.reward, rtol=1e-3, atol=1e-4)


def test_grpo_goes_on(killed: Path, tmp_path: Path) -> None:
    folder, whole = killed / "grpo", grpo_training.train(tmp_path)
    assert max(Checkpoints(folder / "checkpoints").complete) == 4
    steps: list[int] = []
    report = grpo_training.train(folder, watch=lambda outcome: steps.append(outcome.index + 1))
    assert steps == [5, 6]
    assert [row["step"] for row in updates(folder)] == [1, 2, 3, 4, 5, 6]
    for ours, theirs in zip(plain_rows(folder), plain_rows(tmp_path), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    assert_close(report.policy, whole.policy)


def test_dpo_goes_on(killed: Path, tmp_path: Path) -> None:
    folder, whole = killed / "dpo", dpo_training.train(tmp_path)
    assert Checkpoints(folder / "checkpoints").complete == [3]
    steps: list[int] = []
    report = dpo_training.train(folder, watch=lambda outcome: steps.append(outcome.index + 1))
    assert steps == [4, 5, 6]
    for ours, theirs in zip(plain_rows(folder), plain_rows(tmp_path), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert_close(report.policy, whole.policy)
