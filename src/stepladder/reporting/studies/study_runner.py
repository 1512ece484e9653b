"""Carries out a study: for every seed what the arms share, then the arms, several runs at a time.

In: a `Study`, seeds, a folder. Out: runs, `FOLDER/seed-N/ARM`, each one like any other (`stepladder report` shows it),
and `FOLDER/seed-N/shared`, from which the arms begin. A run is a process of its own (`job.py`), and what it says goes
into a log beside it. The same call again goes on where it was cut. A run that fails, or is killed, does not disturb the
others.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.pipeline.recipe import Recipe, load_recipe
from stepladder.reporting.studies.study_job import ERROR, Job
from stepladder.reporting.studies.study_spec import Study

SHARED = "shared"
#: What carries out a job.
COMMAND = (sys.executable, "-m", "stepladder.reporting.studies.study_job")
#: Seconds between looks at the runs, and until one that should stop is killed.
_LOOK, _PATIENCE = 0.2, 30.0
#: What tells a process how many threads it may use, and how much of a GPU (engines/memory.py, which needs torch).
_THREADS, _GPU_SHARE = "OMP_NUM_THREADS", "STEPLADDER_GPU_SHARE"


def run_study(
    study: Study,
    folder: Path,
    *,
    seeds: Sequence[int],
    jobs: int = 1,
    changes: Sequence[str] = (),
    update: bool = False,
    console: Console | None = None,
) -> None:
    """Carry out all runs of a study. `changes` are made to every recipe; `jobs` runs go on at a time."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise StepladderError(f"a study needs seeds that differ; found {list(seeds)}")
    work = [job for seed in seeds for job in jobs_of(study, folder, seed, changes, update)]
    for seed in seeds:
        (folder / f"seed-{seed}").mkdir(parents=True, exist_ok=True)
    carry_out_all(work, jobs, console or Console(stderr=True))


def jobs_of(study: Study, folder: Path, seed: int, changes: Sequence[str] = (), update: bool = False) -> list[Job]:
    """The runs of a seed: what the arms share, then the arms."""
    plain = recipe_of(study, seed, None, changes).plain()
    names = list(plain["stages"])
    if study.shared not in names:
        raise StepladderError(f"the recipe {study.recipe} has no stage '{study.shared}', which the arms should share")
    kept = names[: names.index(study.shared) + 1]
    plain["stages"] = {name: plain["stages"][name] for name in kept}
    shared = Job(plain, run_folder(folder, seed, SHARED), update=update)
    return [
        shared,
        *(
            Job(recipe_of(study, seed, arm, changes).plain(), run_folder(folder, seed, arm), shared.folder, update)
            for arm in study.arms
        ),
    ]


def recipe_of(study: Study, seed: int, arm: str | None, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of an arm, or without one of all that the arms share."""
    changes = tuple(changes)
    own = {change.partition("=")[0] for each in study.arms.values() for change in each} | {"seed"}
    for change in changes:
        if change.partition("=")[0].strip() in own:
            raise StepladderError(
                f"--set {change}: the study {study.name} sets this itself, in each of its runs (--seeds says how many "
                "seeds); a recipe of your own with `stepladder run` can have any value"
            )
    return load_recipe(study.recipe, [*study.changes, *changes, *(study.arms[arm] if arm else ()), f"seed={seed}"])


def run_folder(folder: Path, seed: int, arm: str) -> Path:
    """Where a run of the study is."""
    return folder / f"seed-{seed}" / arm


@dataclass(frozen=True, slots=True)
class _Started:
    """A run under way."""

    job: Job
    process: "subprocess.Popen[str]"


def carry_out_all(work: Sequence[Job], jobs: int, console: Console, command: Sequence[str] = COMMAND) -> None:
    """All jobs, those with an origin when that is done; then an error if some did not come to their end."""
    waiting, failures = list(work), dict[str, str]()
    done: set[Path] = set()
    running: list[_Started] = []
    environment = _environment(min(jobs, len(work)))
    try:
        while waiting or running:
            for job in [job for job in waiting if job.origin is None or job.origin in done][: jobs - len(running)]:
                waiting.remove(job)
                running.append(_start(job, command, environment))
                _say(console, f"{job.name}: begins, log {job.log}")
            time.sleep(_LOOK)
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                _close_input(run)
                if run.process.returncode == 0:
                    done.add(run.job.folder)
                else:
                    failures[run.job.name] = _reason(run)
                    waiting = [job for job in waiting if job.origin != run.job.folder]
                ended = len(work) - len(waiting) - len(running)
                state = failures.get(run.job.name)
                _say(console, f"{run.job.name}: {f'failed: {state}' if state else 'done'} ({ended} of {len(work)})")
    finally:
        _stop(running)
    if failures:
        name, reason = next(iter(failures.items()))
        raise StepladderError(f"{len(failures)} of {len(work)} runs failed; {name}: {reason}. Their logs say more")


def _start(job: Job, command: Sequence[str], environment: dict[str, str]) -> _Started:
    """Begin a run. Ctrl-C at the terminal is ours: the runs are then told to stop."""
    with job.log.open("a", encoding="utf-8") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            text=True,
            env=environment,
            start_new_session=True,
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it ended before it had read; its exit status says so
        process.stdin.write(job.as_line())
        process.stdin.flush()
    return _Started(job, process)


def _close_input(run: _Started) -> None:
    """What tells a run that is under way to stop."""
    assert run.process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended by itself
        run.process.stdin.close()


def _stop(running: Sequence[_Started]) -> None:
    """End the runs in good order; those that do not hear are killed."""
    for run in running:
        _close_input(run)
    end = time.monotonic() + _PATIENCE
    for run in running:
        try:
            run.process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()


def _reason(run: _Started) -> str:
    code = run.process.returncode
    if code < 0:
        return f"ended by {signal.Signals(-code).name} (was there enough memory for so many runs at a time?)"
    lines = run.job.log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = next((line for line in reversed(lines) if line.startswith(ERROR)), None)
    return told.removeprefix(ERROR) if told is not None else f"ended with status {code}"


def _environment(jobs: int) -> dict[str, str]:
    """Runs that go on together share cores and GPUs instead of fighting for them, unless the user says how."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = {_THREADS: str(max(cores // jobs, 1)), _GPU_SHARE: f"{1 / jobs:.4f}"} if jobs > 1 else {}
    return {**shares, **os.environ}


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False, soft_wrap=True)
