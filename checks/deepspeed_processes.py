"""Do two processes with DeepSpeed ZeRO-3 train as one process does? On a CPU, with tiny models.

    pip install deepspeed
    python checks/deepspeed_processes.py --out /tmp/deepspeed

Out: the largest difference of a weight for each trainer; for sft, also of a run in which one process is killed with -9
and the same launch resumes. Exit status 1 if a difference is above 1e-4.

accelerate leaves DeepSpeed out on a CPU, so it is told here that this is not one. DeepSpeed compiles its collectives
for CPUs at the first start, which needs g++.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAINERS = ("sft", "prm", "dpo", "rft", "grpo")
#: What `accelerate launch --config_file recipes/launch/deepspeed-zero3.yaml` sets.
ZERO3 = {
    "ACCELERATE_USE_DEEPSPEED": "true",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "auto",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": "false",
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    "DS_ACCELERATOR": "cpu",
}


def work(folder: Path, trainers: list[str], killed_at: int) -> None:
    """One process: train with each trainer."""
    import torch

    torch.set_num_threads(1)
    from tests.support.launches import train_one

    if "ACCELERATE_USE_DEEPSPEED" in os.environ:
        use_deepspeed_on_cpu()
    for name in trainers:
        train_one(name, folder / name, killed_at if os.environ.get("RANK") == "1" else 0)


def use_deepspeed_on_cpu() -> None:
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    made = AcceleratorState.__init__

    def make(self: Any, mixed_precision: Any = None, cpu: bool = False, *others: Any, **options: Any) -> None:  # noqa: ARG001
        made(self, mixed_precision, False, *others, **options)

    AcceleratorState.__init__ = make


def launch(processes: int, folder: Path, trainers: tuple[str, ...], killed_at: int = 0) -> list[int]:
    """Run processes, as accelerate starts them; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, "-W", "ignore", __file__, "--out", str(folder), "--killed-at", str(killed_at)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])
    common = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    started = []
    for rank in range(processes):
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        several = {**ZERO3, **address, **{name: str(value) for name, value in ranks.items()}} if processes > 1 else {}
        started.append(subprocess.Popen([*command, "--work", *trainers], env={**common, **several}))
    return [each.wait(timeout=600) for each in started]


def largest_difference(one: Path, other: Path) -> float:
    from safetensors.torch import load_file

    mine, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return max(float((mine[name].float() - theirs[name].float()).abs().max()) for name in theirs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--killed-at", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.out, options.work, options.killed_at)
        return 0
    shutil.rmtree(options.out, ignore_errors=True)
    codes = {
        "one process": launch(1, options.out / "one", TRAINERS),
        "ZeRO-3": launch(2, options.out / "zero3", TRAINERS),
        "one of two killed": launch(2, options.out / "killed", ("sft",), killed_at=2),
        "resumed": launch(2, options.out / "killed", ("sft",)),
    }
    print(f"exit codes: {codes}")
    runs = {name: ("zero3", name) for name in TRAINERS} | {"sft, resumed": ("killed", "sft")}
    worst = 0.0
    for label, (folder, name) in runs.items():
        model = "reward" if name == "prm" else "policy"
        apart = largest_difference(options.out / folder / name / model, options.out / "one" / name / model)
        print(f"{label:14}largest difference of a weight {apart:.1e}")
        worst = max(worst, apart)
    return int(worst > 1e-4)


if __name__ == "__main__":
    sys.exit(main())
