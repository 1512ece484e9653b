"""Runs a study: per seed first the shared stages, then the arms, several runs in parallel.

In: a `Study`, seeds, a folder. Out: ordinary runs in `FOLDER/seed-N/ARM` (readable by `stepladder report`), and
`FOLDER/seed-N/shared`, from which the arms start. Each run is its own process (study_job.py) with a log file beside its
folder. Calling it again resumes. A run that fails or is killed does not affect the others.
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
#: Command that runs a job.
COMMAND = (sys.executable, "-m", "stepladder.reporting.studies.study_job")
#: Seconds between polls, and until a run that should stop is killed.
_POLL_INTERVAL, _STOP_TIMEOUT = 0.2, 30.0
#: Environment variables for the number of threads and the share of GPU memory of a process.
_THREADS, _GPU_SHARE = "OMP_NUM_THREADS", "STEPLADDER_GPU_SHARE"


def run_study(
    study: Study,
    folder: Path,
    *,
    seeds: Sequence[int],
    jobs: int = 1,
    overrides: Sequence[str] = (),
    update: bool = False,
    console: Console | None = None,
) -> None:
    """Run all arms and seeds of a study. `overrides` apply to every recipe; `jobs`: number of parallel runs."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise StepladderError(f"a study needs distinct seeds; found {list(seeds)}")
    work = [job for seed in seeds for job in jobs_of(study, folder, seed, overrides, update)]
    for seed in seeds:
        (folder / f"seed-{seed}").mkdir(parents=True, exist_ok=True)
    run_jobs(work, jobs, console or Console(stderr=True))


def jobs_of(study: Study, folder: Path, seed: int, overrides: Sequence[str] = (), update: bool = False) -> list[Job]:
    """The runs of one seed: the shared stages, then the arms."""
    plain = recipe_of(study, seed, None, overrides).plain()
    names = list(plain["stages"])
    if study.shared not in names:
        raise StepladderError(f"the recipe {study.recipe} has no stage '{study.shared}' to share between arms")
    kept = names[: names.index(study.shared) + 1]
    plain["stages"] = {name: plain["stages"][name] for name in kept}
    shared = Job(plain, run_folder(folder, seed, SHARED), update=update)
    return [
        shared,
        *(
            Job(recipe_of(study, seed, arm, overrides).plain(), run_folder(folder, seed, arm), shared.folder, update)
            for arm in study.arms
        ),
    ]


def recipe_of(study: Study, seed: int, arm: str | None, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of an arm, or with None of the shared stages."""
    overrides = tuple(overrides)
    reserved = {each.partition("=")[0] for arm_overrides in study.arms.values() for each in arm_overrides} | {"seed"}
    for each in overrides:
        if each.partition("=")[0].strip() in reserved:
            raise StepladderError(
                f"--set {each}: the study {study.name} sets this itself in each run (--seeds: number of seeds); "
                "to choose the value, use `stepladder run` with your own recipe"
            )
    return load_recipe(study.recipe, [*study.overrides, *overrides, *(study.arms[arm] if arm else ()), f"seed={seed}"])


def run_folder(folder: Path, seed: int, arm: str) -> Path:
    """The folder of a run of the study."""
    return folder / f"seed-{seed}" / arm


@dataclass(frozen=True, slots=True)
class _Running:
    """A job with its process."""

    job: Job
    process: "subprocess.Popen[str]"


def run_jobs(work: Sequence[Job], jobs: int, console: Console, command: Sequence[str] = COMMAND) -> None:
    """Run all jobs, each after its origin. Raises at the end if any failed."""
    waiting, failures = list(work), dict[str, str]()
    done: set[Path] = set()
    running: list[_Running] = []
    environment = _environment(min(jobs, len(work)))
    try:
        while waiting or running:
            for job in [job for job in waiting if job.origin is None or job.origin in done][: jobs - len(running)]:
                waiting.remove(job)
                running.append(_start(job, command, environment))
                _say(console, f"{job.name}: starts, log {job.log}")
            time.sleep(_POLL_INTERVAL)
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
        raise StepladderError(f"{len(failures)} of {len(work)} runs failed; {name}: {reason}. See their logs")


def _start(job: Job, command: Sequence[str], environment: dict[str, str]) -> _Running:
    """Start a run in its own session, so that Ctrl-C reaches only this process, which then stops the runs."""
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
    with suppress(BrokenPipeError):  # it exited before reading; the exit status is checked later
        process.stdin.write(job.to_json())
        process.stdin.flush()
    return _Running(job, process)


def _close_input(run: _Running) -> None:
    """Signals a run to stop."""
    assert run.process.stdin is not None
    with suppress(BrokenPipeError):  # it has exited
        run.process.stdin.close()


def _stop(running: Sequence[_Running]) -> None:
    """Stop the runs cleanly; kill those that do not stop in time."""
    for run in running:
        _close_input(run)
    end = time.monotonic() + _STOP_TIMEOUT
    for run in running:
        try:
            run.process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            run.process.kill()
            run.process.wait()


def _reason(run: _Running) -> str:
    code = run.process.returncode
    if code < 0:
        return f"killed by {signal.Signals(-code).name} (out of memory? try fewer --jobs)"
    lines = run.job.log.read_text(encoding="utf-8", errors="replace").splitlines()
    error = next((line for line in reversed(lines) if line.startswith(ERROR)), None)
    return error.removeprefix(ERROR) if error is not None else f"exit status {code}"


def _environment(jobs: int) -> dict[str, str]:
    """Divides cores and GPU memory between parallel runs, unless the user set these variables."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = {_THREADS: str(max(cores // jobs, 1)), _GPU_SHARE: f"{1 / jobs:.4f}"} if jobs > 1 else {}
    return {**shares, **os.environ}


def _say(console: Console, line: str) -> None:
    console.print(printable(line), highlight=False, soft_wrap=True)
