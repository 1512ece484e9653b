"""Commands of Stepladder, several at a time, each as soon as what it needs is there."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Command:
    """A command, the file that is there when it is done, and those that must be there before it can begin."""

    name: str
    arguments: tuple[str, ...]
    done: Path
    needs: tuple[Path, ...] = ()


def carry_out(
    commands: Iterable[Command], at_once: int, logs: Path, *, more_may_come: Callable[[], bool] = lambda: False
) -> None:
    """Run what is not done yet, some at a time, in order but none before its needs are there.

    What fails is told, what needs it is left out, and the others go on. `more_may_come`: whether somebody else may
    still make what is needed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    waiting = [command for command in commands if not command.done.exists()]
    running: list[Command] = []
    turn = threading.Lock()

    def take() -> Command | None:
        """The first command that can begin, once there is one."""
        while True:
            hope = more_may_come()  # asked before looking: what is made in between is seen
            with turn:
                for command in waiting:
                    if all(need.exists() for need in command.needs):
                        waiting.remove(command)
                        running.append(command)
                        return command
                if not (running or hope):
                    return None
            time.sleep(1)

    def work() -> None:
        while command := take():
            began = time.monotonic()
            try:
                with (logs / f"{command.name}.log").open("w") as log:
                    line = [sys.executable, "-m", "stepladder", *command.arguments]
                    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
                    failed = subprocess.run(line, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)
                if not failed.returncode and command.done.name == "DONE":
                    command.done.touch()
            finally:
                with turn:
                    running.remove(command)
            told = "failed: see its log" if failed.returncode else "done"
            print(f"{command.name}: {told} ({time.monotonic() - began:.0f} s)", flush=True)

    with ThreadPoolExecutor(at_once) as pool:
        for each in [pool.submit(work) for _ in range(at_once)]:
            each.result()
    for command in waiting:
        missing = ", ".join(str(need) for need in command.needs if not need.exists())
        print(f"{command.name}: left out, it needs {missing}")
