"""Runs a study: per seed first the shared stages, then the arms, several jobs in parallel.

In: a `Study`, seeds, a folder. Out: ordinary runs in `FOLDER/seed-N/ARM` (readable by `stepladder report`), and
`FOLDER/seed-N/shared`, from which the arms start. `run_jobs` also runs other commands, such as evaluations, as soon as
what they need is there. Each job is its own process (job_processes.py) with a log file beside its folder. Calling it
again resumes. A job that fails or is killed does not affect the others.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.reporting.run_tables import say
from stepladder.reporting.studies.jobs.job_processes import (
    COMMAND,
    Interpreters,
    JobProcess,
    JobProcesses,
    job_processes,
    wait,
)
from stepladder.reporting.studies.jobs.study_job import ERROR, Job
from stepladder.reporting.studies.study_arms import recipe_of, shared_recipe
from stepladder.reporting.studies.study_gates import check_gates, expect_passed
from stepladder.reporting.studies.study_run_result import RunReader, result_file, run_folder
from stepladder.reporting.studies.study_slot import Slot
from stepladder.reporting.studies.study_spec import SHARED, Study

#: What is kept of a finished run.
Keep = Literal["runs", "results"]
#: Seconds between polls, and until a run that should stop is killed.
_POLL_INTERVAL, _STOP_TIMEOUT = 0.2, 30.0
#: Environment variables for the number of threads and the share of GPU memory of a process.
_THREADS, _GPU_SHARE = "OMP_NUM_THREADS", "STEPLADDER_GPU_SHARE"


def run_study(
    study: Study,
    folder: Path,
    *,
    jobs: int = 1,
    update: bool = False,
    keep: Keep = "runs",
    minutes: float | None = None,
    console: Console | None = None,
) -> None:
    """Run all arms and seeds of a prepared study. `jobs`: number of parallel runs. `keep`: the runs, or their results
    alone. `minutes`: stop then, and begin nothing that takes longer.
    """
    expect_passed(study, folder)
    runs = {run_folder(folder, seed, arm): (seed, arm) for seed in study.seed_list for arm in study.arms}
    shared = {run_folder(folder, seed, SHARED): seed for seed in study.seed_list}
    reader, log = RunReader(study, folder), console or Console(stderr=True)

    def ended(job: Job) -> None:
        if job.folder in shared:
            check_gates(study, folder, shared[job.folder])
        if keep == "results" and job.folder in runs and (why := reader.keep_result(*runs[job.folder])) is not None:
            say(log, f"{job.name}: the run is kept: {why}")

    if keep == "results":
        for each in runs.values():
            reader.keep_result(*each)
    work = [job for seed in study.seed_list for job in jobs_of(study, folder, seed, update)]
    slot = None if minutes is None else Slot(minutes, study, folder, jobs)
    run_jobs(work, jobs, log, ended=ended, slot=slot)


def jobs_of(study: Study, folder: Path, seed: int, update: bool = False) -> list[Job]:
    """The runs of one seed whose results are not kept: the shared stages, if there are any, then the arms."""
    origin = None if study.shared is None else run_folder(folder, seed, SHARED)
    arms = [
        Job(recipe_of(study, seed, arm).plain(), run_folder(folder, seed, arm), origin, update)
        for arm in study.arms
        if not result_file(folder, seed, arm).is_file()
    ]
    if origin is None or not arms:
        return arms
    return [Job(shared_recipe(study, seed).plain(), origin, update=update), *arms]


@dataclass(frozen=True, slots=True)
class _Running:
    """A job with its process."""

    job: Job
    process: JobProcess
    began: float


def run_jobs(
    work: Iterable[Job],
    jobs: int | Mapping[str, int],
    console: Console,
    command: Sequence[str] | None = None,
    *,
    ended: Callable[[Job], None] | None = None,
    slot: Slot | None = None,
) -> None:
    """Run all jobs that are not done, each after its origin, and once the files that it needs exist.

    `jobs`: maximum number of parallel jobs, or of each group of jobs. `command`: what runs a job that it reads from
    standard input. `ended`: called with each job that succeeds.
    `slot`: when to stop. Raises at the end if any failed.
    """
    waiting = [job for job in work if job.done is None or not job.done.exists()]
    limits = jobs if isinstance(jobs, Mapping) else dict.fromkeys((job.group for job in waiting), jobs)
    total, failures, finished = len(waiting), list[str](), set[Path]()
    running: list[_Running] = []
    groups = Counter(job.group for job in waiting)
    environment = _environment(sum(min(limits[group], count) for group, count in groups.items()))
    processes: JobProcesses | None = None
    if command is not None or total == 1:
        processes = Interpreters(environment, command or COMMAND)
    try:
        while running or any(_can_start(job, finished, slot) for job in waiting):
            if slot is not None and slot.left <= 0:
                break
            for job in [job for job in waiting if _can_start(job, finished, slot)]:
                if sum(run.job.group == job.group for run in running) < limits[job.group]:
                    waiting.remove(job)
                    if processes is not None and processes.lost:
                        processes.close()
                        processes = None
                    processes = processes or job_processes(environment)
                    job.log.parent.mkdir(parents=True, exist_ok=True)
                    running.append(_Running(job, processes.start(job), time.monotonic()))
                    if slot is not None:
                        slot.began(job)
                    say(console, f"{job.name}: starts, log {job.log}")
            time.sleep(_POLL_INTERVAL)
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                run.process.stop()
                state = "done"
                if status := run.process.poll():
                    why = _reason(run.job, status)
                    state = f"failed: {why}"
                    failures.append(f"{run.job.name}: {why}")
                    if slot is not None:
                        slot.failed(run.job)
                else:
                    finished.add(run.job.folder)
                    if slot is not None:
                        slot.took(run.job, time.monotonic() - run.began)
                    if run.job.done is not None:
                        run.job.done.touch()
                    if ended is not None:
                        ended(run.job)
                count = total - len(waiting) - len(running)
                say(console, f"{run.job.name}: {state} ({time.monotonic() - run.began:,.0f} s; {count} of {total})")
    finally:
        _stop(running)
        if processes is not None:
            processes.close()
    if slot is not None and (running or any(_can_start(job, finished, None) for job in waiting)):
        stopped = f"{len(running)} runs were stopped, " if running else ""
        left = f"{len(running) + len(waiting)} of {total} are left"
        say(console, f"the slot of {slot.minutes:g} minutes has no room: {stopped}{left}. The same command resumes")
        waiting = []
    for job in waiting:
        missing = [str(path) for path in job.needs if not path.exists()] or [str(job.origin)]
        say(console, f"{job.name}: left out, it needs {', '.join(missing)}")
    if failures:
        raise StepladderError(f"{len(failures)} of {total} runs failed; {failures[0]}. See their logs")


def _can_start(job: Job, finished: Container[Path], slot: Slot | None) -> bool:
    if slot is not None and not slot.fits(job):
        return False
    return (job.origin is None or job.origin in finished) and all(path.exists() for path in job.needs)


def _stop(running: Sequence[_Running]) -> None:
    """Stop the runs cleanly; kill those that do not stop in time."""
    for run in running:
        run.process.stop()
    end = time.monotonic() + _STOP_TIMEOUT
    for run in running:
        if not wait(run.process, max(end - time.monotonic(), 0.1)):
            run.process.kill()
            wait(run.process, _STOP_TIMEOUT)


def _reason(job: Job, status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name} (out of memory? try fewer --jobs)"
    lines = job.log.read_text(encoding="utf-8", errors="replace").splitlines()
    error = next((line for line in reversed(lines) if line.startswith(ERROR)), None)
    return error.removeprefix(ERROR) if error is not None else f"exit status {status}"


def _environment(jobs: int) -> dict[str, str]:
    """Divides cores and GPU memory between parallel runs, unless the user set these variables."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    shares = {_THREADS: str(max(cores // jobs, 1)), _GPU_SHARE: f"{1 / jobs:.4f}"} if jobs > 1 else {}
    return {**shares, **os.environ}
