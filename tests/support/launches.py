"""Several processes as torchrun starts them, forked from one that has imported everything.

`python -m tests.support.launches FOLDER SCENARIO...` runs the scenarios below, each in a folder of its name, and prints
the exit codes of their processes as JSON.
"""

import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: What `accelerate launch --config_file recipes/launch/fsdp2.yaml` sets.
FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}
#: Exit codes: the process noticed that another one is gone; that the main process failed; it had an error to show.
LOST, MAIN_FAILED, FAILED = 3, 4, 5
#: The trainers, and how long each trains.
EPOCHS = {"sft": 2.0, "prm": 2.0, "dpo": 1.0, "grpo": 1.5}


def main(folder: Path, scenarios: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    from tests.support import dpo_training, grpo_training, prm_training, sft_training  # noqa: F401

    print(json.dumps({name: SCENARIOS[name](folder / name) for name in scenarios}))


def free_port() -> str:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def launch(processes: int, work: Callable[[int], Any], **environment: str) -> list[int]:
    """Fork this many processes; the exit code of each."""
    return wait(start(processes, work, **environment))


def start(processes: int, work: Callable[[int], Any], **environment: str) -> list[int]:
    """Fork this many processes; with 0, one without a launcher. Returns their ids."""
    port = free_port()
    children = []
    for rank in range(processes or 1):
        if (child := os.fork()) == 0:
            ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            launched = {**ranks, **address} if processes else {}
            os.environ.update({name: str(value) for name, value in {**launched, **environment}.items()})
            _work(rank, work)
        children.append(child)
    return children


def wait(children: list[int]) -> list[int]:
    """The exit codes of processes."""
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _work(rank: int, work: Callable[[int], Any]) -> None:
    from stepladder.core.errors import StepladderError
    from stepladder.core.io.launch import LostProcess, MainProcessFailed
    from stepladder.train.launch.processes import lost_processes

    code = 1
    try:
        with lost_processes():
            work(rank)
        code = 0
    except StepladderError as error:
        print(f"{rank}: {error}", file=sys.stderr)
        code = {LostProcess: LOST, MainProcessFailed: MAIN_FAILED}.get(type(error), FAILED)
    finally:
        if code == 1:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
        os._exit(code)


def train_all(folder: Path) -> None:
    """A short training with each trainer."""
    for name in EPOCHS:
        train_one(name, folder / name)


def train_one(name: str, folder: Path, device: str = "cpu", **changes: Any) -> None:
    """A short training with a trainer."""
    training = importlib.import_module(f"tests.support.{name}_training")
    settings = training.SETTINGS.model_copy(update={"num_train_epochs": EPOCHS[name], **changes})
    training.train(folder, settings, watch=lambda _: None, device=device)


def train_with_options(folder: Path) -> None:
    """LoRA with gradient checkpointing and another optimizer; two updates of the same episodes."""
    from stepladder.train.loop.config import LoraConfig
    from tests.support import grpo_training, sft_training

    options: dict[str, Any] = {"lora": LoraConfig(r=2), "gradient_checkpointing": True, "optim": "adamw_torch"}
    options["num_train_epochs"] = 1.0
    sft_training.train(folder / "sft", sft_training.SETTINGS.model_copy(update=options), watch=lambda _: None)
    grpo = grpo_training.SETTINGS.model_copy(update={**options, "num_iterations": 2})
    grpo_training.train(folder / "grpo", grpo)


def _killed(folder: Path, **environment: str) -> list[int]:
    """Process 1 is killed after update 4: the checkpoint of update 3 is behind."""
    from tests.support import sft_training

    def work(rank: int) -> None:
        updates: list[object] = []

        def watch(outcome: Any) -> None:
            updates.append(outcome)
            if rank == 1 and len(updates) == 4:
                os.kill(os.getpid(), signal.SIGKILL)

        sft_training.train(folder / "sft", watch=watch)

    return launch(2, work, **environment)


def _resumed(folder: Path, processes: int, **environment: str) -> list[int]:
    from tests.support import sft_training

    return launch(processes, lambda _: sft_training.train(folder / "sft", watch=lambda _: None), **environment)


def _recipe(folder: Path) -> list[list[int]]:
    """A run of a recipe; another one is refused, because its folder has files of somebody else."""
    from stepladder.pipeline import run_recipe
    from stepladder.pipeline.recipe import Recipe, read_yaml

    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "taken").mkdir()
    (folder / "taken" / "mine.txt").write_text("mine")

    def work(rank: int, name: str) -> None:
        report = run_recipe(Recipe.read(read_yaml(folder / "recipe.yaml"), "recipe.yaml"), folder / name)
        found = {"stages": [stage.name for stage in report.stages], "policy": str(report.policy)}
        (folder / f"report-{rank}.json").write_text(json.dumps(found))

    return [launch(2, lambda rank, name=name: work(rank, name)) for name in ("run", "taken")]  # type: ignore[misc]


def _on_one_gpu(folder: Path) -> dict[str, list[int]]:
    """All at once on one GPU: two processes with DDP and with FSDP2, and one with NCCL; and each without a launcher."""
    device, started = os.environ.get("LAUNCHED_ON", "cuda"), {}

    def start_all(name: str, processes: int, precision: str, **environment: str) -> None:
        for trainer in EPOCHS:

            def work(rank: int, trainer: str = trainer) -> None:
                from torch import distributed

                train_one(trainer, folder / name / trainer, device, precision=precision)
                if rank == 0 and processes:
                    (folder / name / f"{trainer}.json").write_text(json.dumps(str(distributed.get_backend())))

            started[f"{name} {trainer}"] = start(processes, work, STEPLADDER_GPU_SHARE="0.1", **environment)

    start_all("one", 0, "fp32")
    start_all("ddp", 2, "fp32")
    start_all("fsdp", 2, "fp32", **FSDP2)
    start_all("one-bf16", 0, "bf16")
    start_all("nccl-bf16", 1, "bf16", **FSDP2)
    return {name: wait(children) for name, children in started.items()}


RECIPE = """
policy: tiny
agent: prorag-brief
device: cpu
search: {k: 1}
episode: {max_tokens: 8}
stages:
  sft: {kind: sft, questions: 6, batch_size: 4, num_train_epochs: 1, dev_questions: 3, learning_rate: 0.001}
  eval-sft: {kind: eval, limit: 3}
"""

SCENARIOS: dict[str, Callable[[Path], Any]] = {
    "ddp": lambda folder: launch(2, lambda _: train_all(folder)),
    "fsdp": lambda folder: launch(2, lambda _: train_all(folder), **FSDP2),
    "options": lambda folder: launch(2, lambda _: train_with_options(folder), **FSDP2),
    "recipe": _recipe,
    "one-gpu": _on_one_gpu,
    "killed": lambda folder: [_killed(folder), _resumed(folder, 1)],
    "killed-fsdp": lambda folder: [_killed(folder, **FSDP2), _resumed(folder, 1), _resumed(folder, 1, **FSDP2)],
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
