"""One job of a study in its own process: a run of a recipe, or another Stepladder command.

`python -m stepladder.reporting.studies.jobs.study_job` reads a `Job` as JSON from standard input, which stays open
while the study runs. When it closes for any reason, the job is interrupted cleanly: no job outlives its study.
"""

import json
import os
import runpy
import shutil
import signal
import sys
import threading
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from rich.console import Console

from stepladder.agents.agent_trust import name_agent, named_agents
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.io.interrupts import remembered_interrupts
from stepladder.core.io.masking import mask, mask_process, revealed
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe

#: Prefix of the last log line of a failed job.
ERROR = "error: "


@dataclass(frozen=True, slots=True)
class Job:
    """A recipe as plain data to be run in a folder, or the arguments of a command that writes the folder."""

    recipe: dict[str, Any]
    folder: Path
    #: Run folder to start from, as a copy.
    origin: Path | None = None
    #: Whether stale stages are recomputed.
    update: bool = False
    #: Arguments of `stepladder`; empty for a run of the recipe.
    arguments: tuple[str, ...] = ()
    #: Files that must exist before the job can start.
    needs: tuple[Path, ...] = ()
    #: A file that exists when the job is done; None: the job itself finds what is left to do.
    done: Path | None = None
    #: Each group of jobs has a maximum number of jobs at a time.
    group: str = "runs"
    title: str = ""
    #: Agent files that the user named in the process of the study.
    agents: tuple[str, ...] = field(default_factory=named_agents)

    @property
    def name(self) -> str:
        """Display name: the title, else the folder."""
        return self.title or f"{self.folder.parent.name} {self.folder.name}"

    @property
    def log(self) -> Path:
        """The log file, beside the folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def to_json(self) -> str:
        """One line of JSON for another process, with the passwords of URLs."""
        return json.dumps(revealed(TypeAdapter(Job).dump_python(self, mode="json"))) + "\n"


def run_job(job: Job) -> None:
    """Run or resume the job. A new run starts as a copy of its origin."""
    for agent in job.agents:
        name_agent(agent)
    if job.arguments:
        sys.argv = ["stepladder", *job.arguments]
        runpy.run_module("stepladder", run_name="__main__")
        return
    if job.origin is not None and not (job.folder / "run.json").exists():
        with atomic_folder(job.folder, "run") as partial:  # without the checkpoints of finished stages
            shutil.copytree(
                job.origin, partial, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock", "checkpoints")
            )
    run_recipe(Recipe.read(job.recipe, job.name), job.folder, update=job.update, console=Console(width=200))


def _interrupt_at_eof() -> None:
    """Wait until standard input is closed, then interrupt this process as Ctrl-C would."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def run_until_eof(job: Job) -> int:
    """Run the job; returns the exit status. It is interrupted when standard input ends."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    mask_process()  # output goes to a log file, which must not contain keys
    try:
        threading.Thread(target=_interrupt_at_eof, daemon=True).start()
        with remembered_interrupts():
            run_job(job)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 130
    except StepladderError as error:
        print(f"{ERROR}{error}", flush=True)
        return 1
    except Exception as error:  # noqa: BLE001 - logged and reported to the study, whose other jobs continue
        print(mask("".join(traceback.format_exception(error))))
        print(mask(f"{ERROR}{type(error).__name__}: {error}"), flush=True)
        return 1
    return 0


def main() -> int:
    """Run the job from standard input; returns the exit status."""
    return run_until_eof(TypeAdapter(Job).validate_json(sys.stdin.readline()))


if __name__ == "__main__":
    sys.exit(main())
