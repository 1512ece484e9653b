"""How long the jobs of a study take as forks of one process, and as an interpreter each.

    python benchmarks/study_jobs.py [--jobs 2] [--count 8]

Every job trains a model of random weights for one update with the real trainers, so its time is mostly that of its
start.
"""

import argparse
import tempfile
import time
from io import StringIO
from pathlib import Path

from rich.console import Console

from stepladder.pipeline.recipe import Recipe
from stepladder.reporting.studies.jobs.job_processes import COMMAND
from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.reporting.studies.study_runner import run_jobs

RECIPE = {
    "policy": "tiny",
    "agent": "prorag-brief",
    "device": "cpu",
    "stages": {"sft": {"questions": 4, "num_train_epochs": 1, "dev_questions": 0, "batch_size": 4}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--count", type=int, default=8, help="in all")
    options = parser.parse_args()
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, command in (("an interpreter each", COMMAND), ("forks", None)):
            recipes = (Recipe.read({**RECIPE, "seed": seed}, "small").plain() for seed in range(options.count))
            work = [Job(recipe, Path(folder) / name / f"job-{n}") for n, recipe in enumerate(recipes)]
            started = time.monotonic()
            run_jobs(work, options.jobs, Console(file=StringIO()), command)
            seconds[name] = time.monotonic() - started
            print(f"{name}: {options.count} jobs, {options.jobs} at a time: {seconds[name]:.1f} s", flush=True)
    print(f"forks: {seconds['an interpreter each'] / seconds['forks']:.1f} times as fast")


if __name__ == "__main__":
    main()
