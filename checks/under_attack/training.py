"""What happens to a training: damaged checkpoints, a full disk, an interrupt at a bad moment."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from under_attack.clients import index
from under_attack.fake import answering, completion
from under_attack.version import NotRun, Version, attack, listed

#: Updates of the training, and between two checkpoints.
UPDATES, EVERY = 24, 6


def recipe(version: Version, folder: Path) -> Path:
    """Write a recipe that trains a very small model for a few updates; returns its path."""
    stage = {"questions": UPDATES, "num_train_epochs": 2, "batch_size": 2, "eval_steps": EVERY, "dev_questions": 0}
    plain = {
        "policy": "tiny",
        "agent": "direct",
        "data": {"name": "atlas-small"},
        "stages": {"sft": {version.say(key): value for key, value in {**stage, "precision": "fp32"}.items()}},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    return path


def weights(run: Path) -> bytes:
    """What was trained."""
    found = [path for path in run.rglob("model.safetensors") if "checkpoints" not in path.parts]
    if len(found) != 1:
        raise NotRun(f"{len(found)} trained models")
    return found[0].read_bytes()


def checkpoint(run: Path, step: int) -> Path:
    """The folder of a checkpoint."""
    return run / "sft" / "checkpoints" / f"checkpoint-{step}"


def until(seen: Callable[[], object], process: "subprocess.Popen[str]", seconds: float = 300) -> None:
    """Wait for a moment of a process."""
    deadline = time.monotonic() + seconds
    while not seen():
        if process.poll() is not None or time.monotonic() > deadline:
            raise NotRun("the command ended before the attack could be made")
        time.sleep(0.002)


def trained(version: Version) -> Path:
    """Two trainings, made once: `whole` has ended, `cut` was killed while it wrote its second checkpoint."""

    def make(folder: Path) -> None:
        path = recipe(version, folder)
        version.cli("run", path, "--out", folder / "whole", folder=folder).done()
        quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with version.start("run", path, "--out", folder / "cut", folder=folder, **quiet) as process:
            until(checkpoint(folder / "cut", 2 * EVERY).exists, process)
            process.kill()

    return version.made("trained", make)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "truncated optimizer.pt": ("optimizer.pt", _truncate),
    "truncated model.safetensors": ("model.safetensors", _truncate),
    "missing optimizer.pt": ("optimizer.pt", Path.unlink),
}


@attack("damaged checkpoint")
def damaged_checkpoint(version: Version, folder: Path) -> str | None:
    """A complete checkpoint that lost a file or a part of one: training ends with the same weights nevertheless."""
    before = trained(version)
    expected = weights(before / "whole")

    def problems() -> Iterator[str | None]:
        for name, (file, damage) in DAMAGES.items():
            run = folder / file / name.split()[0]
            shutil.copytree(before / "cut", run)
            damage(checkpoint(run, EVERY) / file)
            done = version.cli("run", before / "recipe.yaml", "--out", run, folder=folder)
            same = done.code == 0 and weights(run) == expected
            yield None if same else f"{name}: {'other weights, no error' if done.code == 0 else done.last}"

    return listed(problems())


@attack("full disk")
def full_disk(version: Version, folder: Path) -> str | None:
    """No room for the second file of a checkpoint: the error names the disk."""
    size = (checkpoint(trained(version) / "cut", EVERY) / "model.safetensors").stat().st_size
    path = recipe(version, folder)
    done = version.cli("run", path, "--out", folder / "run", folder=folder, file_bytes=size + 1000)
    return done.refused("disk", "checkpoint")


#: Ctrl-C while Python runs a finalizer: what is raised there is printed and dropped. SIGUSR1 sets it off.
UNLUCKY = """
import pathlib, signal

class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

def unlucky(*_):
    pathlib.Path({sent!r}).touch()
    Dying()

signal.signal(signal.SIGUSR1, unlucky)
"""


def _interrupted(version: Version, folder: Path, words: list[object], begun: Callable[[], object]) -> str | None:
    sent = folder / "sent"
    (folder / "sitecustomize.py").write_text(UNLUCKY.format(sent=str(sent)), encoding="utf-8")
    path = os.pathsep.join((str(folder), str(version.root / "src")))
    pipes: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with version.start(*words, folder=folder, env={"PYTHONPATH": path}, **pipes) as process:
        until(begun, process)
        process.send_signal(signal.SIGUSR1)
        until(sent.exists, process)
        try:
            _, said = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.kill()
            said = "did not end"
    ended = process.returncode in (130, -signal.SIGINT)
    return None if ended else f"{words[0]} ended with {process.returncode}: {said.strip().splitlines()[-1][:100]}"


@attack("interrupt during training")
def interrupt_during_training(version: Version, folder: Path) -> str | None:
    """Ctrl-C at a moment in which Python drops it."""
    run = folder / "run"
    words: list[object] = ["run", recipe(version, folder), "--out", run]
    return _interrupted(version, folder, words, checkpoint(run, EVERY).exists)


@attack("interrupt during an evaluation")
def interrupt_during_an_evaluation(version: Version, folder: Path) -> str | None:
    """Ctrl-C at a moment in which Python drops it."""
    asked: list[str] = []

    def answer(path: str, _: dict[str, Any]) -> tuple[int, object]:
        asked.append(path)
        return 200, completion("<answer>Ada Tarn</answer>")

    with answering(answer) as host:
        engine = ["--engine", "openai", "--base-url", f"http://{host}/v1", "--model", "m", "--agent", "direct"]
        words = ["eval", *engine, "--data", "atlas", "--split", "train", "--limit", 3000, "--index", index(version)]
        return _interrupted(version, folder, words, lambda: len(asked) > 5)
