"""One run of a study in its own process: `python -m stepladder.reporting.studies.study_job`, a `Job` as JSON on stdin.

Standard input stays open while the study runs. When it closes for any reason, the run is interrupted cleanly: no run
outlives its study.
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

#: Prefix of the last log line of a failed run.
ERROR = "error: "


@dataclass(frozen=True, slots=True)
class Job:
    """A recipe as plain data, and the run folder."""

    recipe: dict[str, Any]
    folder: Path
    #: Run folder to start from, as a copy.
    origin: Path | None = None
    #: Whether stale stages are recomputed.
    update: bool = False

    @property
    def name(self) -> str:
        """Display name."""
        return f"{self.folder.parent.name} {self.folder.name}"

    @property
    def log(self) -> Path:
        """The log file, beside the run folder."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def to_json(self) -> str:
        """One line of JSON."""
        origin = None if self.origin is None else str(self.origin)
        plain = {"recipe": self.recipe, "folder": str(self.folder), "origin": origin, "update": self.update}
        return json.dumps(plain) + "\n"

    @classmethod
    def from_json(cls, line: str) -> "Job":
        """The inverse of `to_json`."""
        plain = json.loads(line)
        origin = None if plain["origin"] is None else Path(plain["origin"])
        return cls(plain["recipe"], Path(plain["folder"]), origin, plain["update"])


def run_job(job: Job) -> None:
    """Run or resume the job. A new run starts as a copy of its origin."""
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


def main() -> int:
    """Run the job from stdin; returns the exit status."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = Job.from_json(sys.stdin.readline())
    try:
        threading.Thread(target=_interrupt_at_eof, daemon=True).start()
        run_job(job)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        return 130
    except StepladderError as error:
        print(f"{ERROR}{error}", flush=True)
        return 1
    except Exception as error:  # noqa: BLE001 - logged and reported to the study, whose other runs continue
        traceback.print_exc(file=sys.stdout)
        print(f"{ERROR}{type(error).__name__}: {error}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
