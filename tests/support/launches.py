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
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

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
#: How long each trainer trains: three updates, a checkpoint after each.
LENGTHS: dict[str, dict[str, Any]] = {
    "sft": {"num_train_epochs": 1.0, "eval_steps": 1},
    "prm": {"num_train_epochs": 1.5, "eval_steps": 1},
    "dpo": {"num_train_epochs": 1.0, "eval_steps": 1},
    "grpo": {"num_train_epochs": 1.5, "eval_steps": 1},
    "rft": {"num_train_epochs": 1.0, "eval_steps": 1, "dev_questions": 0},
}
#: The settings of `train_refilled`.
REFILLED: dict[str, Any] = {
    "mode": "outcome", "refill": 2, "num_generations": 2, "batch_size": 4, "num_train_epochs": 6, "token_budget": 250
}  # fmt: skip
#: Those whose processes are killed.
KILLED = ("sft", "grpo")


def main(folder: Path, scenarios: list[str]) -> None:
    import torch

    torch.set_num_threads(1)
    from tests.support import dpo_training, grpo_training, prm_training, rft_training, sft_training  # noqa: F401

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
    from stepladder.core.io.launch import LostProcess, MainProcessFailed, prints
    from stepladder.train.launch.processes import lost_processes

    code = 1
    try:
        with lost_processes():
            code = work(rank) or 0
    except StepladderError as error:
        if prints(error):
            print(f"{rank}: {error}", file=sys.stderr)
        code = {LostProcess: LOST, MainProcessFailed: MAIN_FAILED}.get(type(error), FAILED)
    finally:
        if code == 1:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
        os._exit(code)


def train_all(folder: Path) -> None:
    """A short training with each trainer."""
    for name in LENGTHS:
        train_one(name, folder / name)


def train_one(name: str, folder: Path, killed_at: int = 0, device: str = "cpu", **changes: Any) -> None:
    """A short training with a trainer. With `killed_at`, this process is killed after that update."""
    training = importlib.import_module(f"tests.support.{name}_training")

    def watch(outcome: Any) -> None:
        if isinstance(outcome.value, float) and outcome.index + 1 == killed_at:  # an update
            os.kill(os.getpid(), signal.SIGKILL)

    # An odd number of states: one of two processes has no example in the last update of an epoch.
    odd = {"pairs": training.PAIRS[:-1]} if name == "prm" else {}
    settings = training.SETTINGS.model_copy(update={**LENGTHS[name], **changes})
    training.train(folder, settings, watch=watch, device=device, **odd)


def save_model(folder: Path) -> None:
    """Write the tiny model for `train_with_options`."""
    from stepladder.models.tiny import tiny_model, tiny_tokenizer

    for part in (tiny_model(), tiny_tokenizer()):
        part.save_pretrained(folder / "model")


def _options(folder: Path) -> list[int]:
    save_model(folder)
    return launch(2, lambda _: train_with_options(folder), **FSDP2)


def train_with_options(folder: Path) -> None:
    """LoRA with gradient checkpointing and another optimizer; two updates of episodes by a stand-in for vLLM."""
    from stepladder.train.loop import rollout_engine
    from stepladder.train.loop.config import LoraConfig
    from tests.support import grpo_training, sft_training, stand_in_vllm

    options: dict[str, Any] = {"lora": LoraConfig(r=2), "gradient_checkpointing": True, "optim": "adamw_torch"}
    options["num_train_epochs"] = 1.0
    sft_training.train(folder / "sft", sft_training.SETTINGS.model_copy(update=options), watch=lambda _: None)
    options |= {"num_iterations": 2, "engine": "vllm", "vllm_max_model_length": 128}
    grpo = grpo_training.SETTINGS.model_copy(update=options)
    with (
        pytest.MonkeyPatch.context() as modules,
        patch.object(rollout_engine, "resolve_full_model", lambda _: folder / "model"),
        patch.object(stand_in_vllm.LLM, "__init__", autospec=True, side_effect=stand_in_vllm.LLM.__init__) as made,
    ):
        stand_in_vllm.install(modules)
        grpo_training.train(folder / "grpo", grpo)
    kept = ("distributed_executor_backend", "gpu_memory_utilization", "tensor_parallel_size", "dtype")
    found = [{name: call.kwargs.get(name) for name in kept} for call in made.call_args_list]
    (folder / f"vllm-{os.environ.get('RANK', 0)}.json").write_text(json.dumps(found))


def _killed(folder: Path, trainer: str) -> list[list[int]]:
    """Of two processes one is killed; then the only one that resumes; the third launch has two processes again."""

    def work(rank: int, dies: int, update: int) -> None:
        train_one(trainer, folder / trainer, update if rank == dies else 0)

    launches = [(2, 1, 2), (1, 0, 3), (2, 0, 0)]
    return [launch(count, partial(work, dies=dies, update=update)) for count, dies, update in launches]


def _undisturbed(folder: Path, trainer: str) -> list[list[int]]:
    return [launch(2, lambda _: train_one(trainer, folder / trainer))]


def _refilled(folder: Path) -> list[list[int]]:
    """Two processes, each of which replaces its own questions; the second one is killed, and both resume."""
    return [launch(2, partial(train_refilled, folder / "grpo", dies=dies)) for dies in (1, -1)]


def train_refilled(folder: Path, rank: int, dies: int = -1) -> None:
    """GRPO whose questions often give no signal, until a number of tokens is written."""
    train_one("grpo", folder, 3 if rank == dies else 0, **REFILLED)


def _sharded(folder: Path) -> list[list[int]]:
    """Two processes with FSDP2, of which one is killed in the last training; one process without FSDP, and with it."""

    def work(rank: int) -> None:
        for trainer in ("prm", "dpo", "grpo", "rft"):
            train_one(trainer, folder / trainer)
        train_one("sft", folder / "sft", killed_at=2 if rank == 1 else 0)

    def resume(_: int) -> None:
        train_one("sft", folder / "sft")

    return [launch(2, work, **FSDP2), launch(1, resume), launch(1, resume, **FSDP2)]


def _recipe(folder: Path) -> list[list[int]]:
    """A run of a recipe; and commands that fail in the main process, in training in all processes, and at once."""
    from stepladder import cli
    from stepladder.pipeline import run_recipe
    from stepladder.pipeline.recipe import Recipe, read_yaml

    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "broken.yaml").write_text(
        RECIPE.replace("0.001", "1.0e+30")
        .replace("epochs: 1", "epochs: 2")
        .replace("dev_questions: 3", "dev_questions: 0")
    )
    (folder / "taken").mkdir()
    (folder / "taken" / "mine.txt").write_text("mine")

    def work(rank: int) -> None:
        report = run_recipe(Recipe.read(read_yaml(folder / "recipe.yaml"), "recipe.yaml"), folder / "run")
        found = {"stages": [stage.name for stage in report.stages], "policy": str(report.policy)}
        (folder / f"report-{rank}.json").write_text(json.dumps(found))

    def command(_: int, recipe: str, out: str) -> int:
        return cli.main(["run", str(folder / recipe), "--out", str(folder / out)])

    failing = [("recipe.yaml", "taken"), ("broken.yaml", "broken"), ("missing.yaml", "missing")]
    return [launch(2, work), *(launch(2, partial(command, recipe=recipe, out=out)) for recipe, out in failing)]


def _on_one_gpu(folder: Path) -> dict[str, list[int]]:
    """One process without a launcher, and with NCCL and FSDP2, all at once; then two with DDP and two with FSDP2."""
    device = os.environ.get("LAUNCHED_ON", "cuda")

    def begin(name: str, trainer: str, processes: int, precision: str, **environment: str) -> list[int]:
        def work(rank: int) -> None:
            from torch import distributed

            train_one(trainer, folder / name / trainer, device=device, precision=precision)
            if rank == 0 and processes:
                (folder / name / f"{trainer}.json").write_text(json.dumps(str(distributed.get_backend())))

        return start(processes, work, STEPLADDER_GPU_SHARE="0.1", **environment)

    started = {}
    for trainer in LENGTHS:
        started[f"one {trainer}"] = begin("one", trainer, 0, "fp32")
        started[f"one-bf16 {trainer}"] = begin("one-bf16", trainer, 0, "bf16")
        started[f"nccl-bf16 {trainer}"] = begin("nccl-bf16", trainer, 1, "bf16", **FSDP2)
    codes = {name: wait(children) for name, children in started.items()}
    for trainer in LENGTHS:
        ddp, fsdp = begin("ddp", trainer, 2, "fp32"), begin("fsdp", trainer, 2, "fp32", **FSDP2)
        codes |= {f"ddp {trainer}": wait(ddp), f"fsdp {trainer}": wait(fsdp)}
    return codes


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
    "ddp": lambda folder: {
        trainer: (_killed if trainer in KILLED else _undisturbed)(folder, trainer) for trainer in LENGTHS
    },
    "fsdp": _sharded,
    "refill": _refilled,
    "options": _options,
    "recipe": _recipe,
    "one-gpu": _on_one_gpu,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
