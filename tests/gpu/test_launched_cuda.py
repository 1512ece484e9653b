"""Several processes on one GPU train as one does, and one process trains with NCCL and FSDP2 in bf16.

`pytest -s tests/gpu/test_launched_cuda.py` prints the largest differences.
`LAUNCHED_ON=cpu` runs them on a CPU.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import ROOT
from tests.support.launches import FSDP2, LENGTHS, RECIPE, free_port
from tests.support.training_runs import losses, plain_rows, weights

DEVICE = os.environ.get("LAUNCHED_ON", "cuda")
pytestmark = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="there is no GPU")
#: No launch takes longer, on any GPU.
SECONDS = 180 if DEVICE == "cuda" else 500


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder of all launches, and the exit codes of their processes; a run of the command under torchrun."""
    folder = tmp_path_factory.mktemp("launched")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a fork must not have touched CUDA before
    (folder / "recipe.yaml").write_text(RECIPE.replace("device: cpu", f"device: {DEVICE}"))
    torchrun = ["torch.distributed.run", "--nproc-per-node", "1", "--master-port", free_port(), "-m", "stepladder"]
    torchrun += ["run", str(folder / "recipe.yaml"), "--out", str(folder / "run")]
    scenario = ["tests.support.launches", str(folder), "one-gpu"]
    command, printed, codes = [sys.executable, "-W", "ignore", "-m"], folder / "printed.txt", folder / "codes.json"
    with printed.open("w") as errors, codes.open("w") as file:
        started = [
            subprocess.Popen(words, stdout=out, stderr=errors, cwd=ROOT, env=variables, process_group=0)
            for words, out, variables in (
                ([*command, *scenario], file, environment),
                ([*command, *torchrun], errors, {**environment, **FSDP2}),
            )
        ]
        try:
            ended = [each.wait(timeout=SECONDS) for each in started]
        finally:
            for each in started:
                with suppress(ProcessLookupError):
                    os.killpg(each.pid, signal.SIGKILL)  # and what it has started
            print(printed.read_text()[-30000:])
    assert ended[0] == 0
    return folder / "one-gpu", {**json.loads(codes.read_text().splitlines()[-1])["one-gpu"], "torchrun": [ended[1]]}


def largest_difference(one: Path, other: Path) -> tuple[float, str]:
    """Between curves, of every number, relative to those above 1; and which it is."""
    found = [(0.0, "nothing")]
    for ours, theirs in zip(plain_rows(one), plain_rows(other), strict=True):
        assert ours.keys() == theirs.keys()
        rounding = {"logprob_gap_max", "logprob_gap_mean"}  # these are rounding itself
        if abs(ours.get("reward_gap", 1.0)) < 1e-5:  # before the first update of dpo: the sign of 0
            rounding |= {"accuracy"}
        for name in ours.keys() - rounding:
            relative = abs(ours[name] - theirs[name]) / max(abs(ours[name]), abs(theirs[name]), 1.0)
            found.append((relative, f"{name} of update {ours['step']}"))
    return max(found)


@pytest.mark.parametrize("trainer", LENGTHS)
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_processes_on_one_gpu_train_as_one(launched: Any, trainer: str, sharding: str) -> None:
    folder, codes = launched
    assert codes[f"one {trainer}"] == [0]
    assert codes[f"{sharding} {trainer}"] == [0, 0]
    if DEVICE == "cuda":
        assert "nccl" in json.loads((folder / sharding / f"{trainer}.json").read_text())
    curves, name = largest_difference(folder / sharding / trainer, folder / "one" / trainer)
    model = "reward" if trainer == "prm" else "policy"
    expected = weights(folder / "one" / trainer / model)
    found = weights(folder / sharding / trainer / model)
    gaps = max(float((found[name] - tensor).abs().max()) for name, tensor in expected.items())
    print(f"\n{sharding} {trainer}: curves differ by at most {curves:.1e} ({name}), weights by {gaps:.1e}")
    assert curves < 1e-3
    assert gaps < 1e-3


@pytest.mark.parametrize("trainer", LENGTHS)
def test_one_process_with_nccl_and_fsdp_trains_in_bf16(launched: Any, trainer: str) -> None:
    folder, codes = launched
    assert codes[f"one-bf16 {trainer}"] == codes[f"nccl-bf16 {trainer}"] == [0]
    if DEVICE == "cuda":
        assert "nccl" in json.loads((folder / "nccl-bf16" / f"{trainer}.json").read_text())
    ours, theirs = losses(folder / "nccl-bf16" / trainer), losses(folder / "one-bf16" / trainer)
    shown = [f"{each[0]:.4f} -> {each[-1]:.4f}" for each in (ours, theirs)]
    print(f"\nnccl bf16 {trainer}: losses {shown[0]}, without a launcher {shown[1]}")
    assert len(ours) == len(theirs)
    if trainer not in (
        "rft",
        "grpo",
    ):  # their episodes are generated by a copy in bf16 there, and by the policy in fp32 here
        assert ours == pytest.approx(theirs, rel=0.05)


def test_the_command_under_torchrun(launched: Any) -> None:
    folder, codes = launched
    assert codes["torchrun"] == [0]
    record = json.loads((folder.parent / "run" / "sft" / "stage.json").read_text())
    assert record["attempts"] == 1
