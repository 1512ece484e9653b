"""One run of a study in its own process: `python -m stepladder.reporting.studies.study_job`, a `Job` as JSON on stdin.

Standard input stays open as long as the study goes on. When it closes, however that came, the run stops in good order:
no run outlives its study.
"""

import json
import os
import shutil
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe

#: How the last line of a failed run's log begins.
ERROR = "error: "


@dataclass(frozen=True, slots=True)
class Job:
    """A recipe, as plain data, and where it is carried out."""

    recipe: dict[str, Any]
    folder: Path
    #: The run that it begins as a copy of.
    origin: Path | None = None
    #: Whether what a changed recipe no longer gives is computed again.
    update: bool = False

    @property
    def name(self) -> str:
        """As it is told to the user."""
        return f"{self.folder.parent.name} {self.folder.name}"

    @property
    def log(self) -> Path:
        """What the run says, beside its folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def as_line(self) -> str:
        """For another process."""
        origin = None if self.origin is None else str(self.origin)
        plain = {"recipe": self.recipe, "folder": str(self.folder), "origin": origin, "update": self.update}
        return json.dumps(plain) + "\n"

    @classmethod
    def of_line(cls, line: str) -> "Job":
        """As another process wrote it."""
        plain = json.loads(line)
        origin = None if plain["origin"] is None else Path(plain["origin"])
        return cls(plain["recipe"], Path(plain["folder"]), origin, plain["update"])


def carry_out(job: Job) -> None:
    """The run, from where it was cut or as a copy of its origin."""
    if job.origin is not None and not (job.folder / "run.json").exists():
        with atomic_folder(job.folder, "run") as half:  # checkpoints of finished stages are of no more use
            shutil.copytree(job.origin, half, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock", "checkpoints"))
    run_recipe(Recipe.read(job.recipe, job.name), job.folder, update=job.update, console=Console(width=200))


def _stop_with_the_study() -> None:
    """Wait until standard input is closed, then interrupt this process as Ctrl-C would."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """Carry out the job; 0 if it is done."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = Job.of_line(sys.stdin.readline())
    try:
        threading.Thread(target=_stop_with_the_study, daemon=True).start()
        carry_out(job)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 130
    except StepladderError as error:
        print(f"{ERROR}{error}", flush=True)
        return 1
    except Exception as error:  # noqa: BLE001 - told in the log and to the study, whose other runs go on
        traceback.print_exc(file=sys.stdout)
        print(f"{ERROR}{type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
