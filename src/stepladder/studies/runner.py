"""Carries out a study: for every seed what the arms share, then the arms, several runs at a time.

In: a `Study`, seeds, a folder. Out: runs, `FOLDER/seed-N/ARM`, each one like any other (`stepladder report` shows it),
and `FOLDER/seed-N/shared`, from which the arms begin. A run is a process of its own, and what it says goes into a log
beside it. The same call again goes on where it was cut; a change of the study is refused as in any run.
"""

import multiprocessing
import os
import shutil
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from rich.console import Console

from stepladder.errors import StepladderError
from stepladder.narrate import shown
from stepladder.recipe import Recipe, load_recipe
from stepladder.run import run_recipe
from stepladder.studies.base import Study

SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Job:
    """One run. It goes to another process, so the recipe is plain data."""

    recipe: dict[str, Any]
    folder: Path
    #: The run that it begins as a copy of.
    origin: Path | None = None

    @property
    def name(self) -> str:
        """As it is told to the user."""
        return f"{self.folder.parent.name} {self.folder.name}"


def run_study(
    study: Study,
    folder: Path,
    *,
    seeds: Sequence[int],
    jobs: int = 1,
    changes: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Carry out all runs of a study. `changes` are made to every recipe; `jobs` runs go on at a time."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise StepladderError(f"a study needs seeds that differ; found {list(seeds)}")
    console = console or Console(stderr=True)
    shared = [_shared(study, folder, seed, changes) for seed in seeds]
    arms = [_arm(study, folder, seed, arm, changes) for seed in seeds for arm in study.arms]
    folder.mkdir(parents=True, exist_ok=True)
    with _threads_for(jobs):
        _carry_out(shared, jobs, console)
        _carry_out(arms, jobs, console)


def recipe_of(study: Study, seed: int, arm: str | None, changes: Iterable[str] = ()) -> Recipe:
    """The recipe of an arm, or without one of all that the arms share."""
    own = study.arms[arm] if arm is not None else ()
    return load_recipe(study.recipe, [*study.changes, *changes, *own, f"seed={seed}"])


def run_folder(folder: Path, seed: int, arm: str) -> Path:
    """Where a run of the study is."""
    return folder / f"seed-{seed}" / arm


def _shared(study: Study, folder: Path, seed: int, changes: Sequence[str]) -> Job:
    plain = recipe_of(study, seed, None, changes).plain()
    names = list(plain["stages"])
    if study.shared not in names:
        raise StepladderError(f"the recipe {study.recipe} has no stage '{study.shared}', which the arms should share")
    kept = names[: names.index(study.shared) + 1]
    plain["stages"] = {name: plain["stages"][name] for name in kept}
    return Job(plain, run_folder(folder, seed, SHARED))


def _arm(study: Study, folder: Path, seed: int, arm: str, changes: Sequence[str]) -> Job:
    recipe = recipe_of(study, seed, arm, changes)
    return Job(recipe.plain(), run_folder(folder, seed, arm), run_folder(folder, seed, SHARED))


def _carry_out(work: Sequence[Job], jobs: int, console: Console) -> None:
    """All of them; then an error if some did not come to their end."""
    # Spawned, each for one run: CUDA does not survive a fork, and what a run has allocated goes with it.
    context = multiprocessing.get_context("spawn")
    failures: list[str] = []
    with ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool:
        waiting: dict[Future[str | None], Job] = {pool.submit(carry_out_job, job): job for job in work}
        try:
            for count, future in enumerate(as_completed(waiting), start=1):
                job, failure = waiting[future], future.result()
                if failure is not None:
                    failures.append(f"{job.name}: {failure} ({log_of(job.folder)})")
                state = "done" if failure is None else f"failed: {failure}"
                console.print(f"{job.name}: {shown(state)} ({count} of {len(work)})", highlight=False, soft_wrap=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if failures:
        raise StepladderError(f"{len(failures)} of {len(work)} runs failed: " + "; ".join(failures))


def carry_out_job(job: Job) -> str | None:
    """One run, in a process of its own; why it failed."""
    if job.origin is not None:
        _begin_as(job.origin, job.folder)
    log = log_of(job.folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            run_recipe(Recipe.read(job.recipe, job.name), job.folder, console=Console(file=file))
        except StepladderError as error:
            print(f"error: {error}", file=file)
            return str(error)
        except Exception as error:  # noqa: BLE001 whatever it was, the other runs go on, and the log has it
            traceback.print_exc(file=file)
            return f"{type(error).__name__}: {error}"
    return None


def log_of(folder: Path) -> Path:
    """The log of a run, beside its folder."""
    return folder.with_name(f"{folder.name}.log")


def _begin_as(origin: Path, folder: Path) -> None:
    """A copy of a run, made at once or not at all. Checkpoints of finished stages are of no more use."""
    if folder.exists():
        return
    half = folder.with_name(f".{folder.name}-{token_hex(4)}")
    shutil.copytree(origin, half, ignore=shutil.ignore_patterns(".lock", "checkpoints"))
    half.rename(folder)


@contextmanager
def _threads_for(jobs: int) -> Iterator[None]:
    """Within, processes that are begun share the cores instead of fighting for them, unless the user says how many."""
    name = "OMP_NUM_THREADS"
    before = os.environ.get(name)
    if before is None:
        os.environ[name] = str(max((os.cpu_count() or 1) // jobs, 1))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
