"""Does `stepladder plan` predict what a run takes? Runs a recipe and compares time and peak memory of every stage.

    python checks/plan_against_run.py prorag-nano --out /tmp/run [--set stages.sft.questions=24] [--gpus H200-141G]

In: a recipe, overrides. Out: a table with predicted and measured seconds and bytes, and their errors; exit status 1 if
a stage misses by more than --time-error (0.3) or --memory-error (0.15). Stages that take less than --shortest seconds
are shown, and not judged.

Every stage runs in a process of its own, so that its memory is its own. Memory is that of the process on a CPU, and
what is in use on the GPU otherwise. Time is that of the clock; with one thread on a CPU it is the processor's, because
other programs would count otherwise. Measure the machine first: `stepladder plan RECIPE --measure`.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from stepladder.pipeline import run_recipe, runner
from stepladder.pipeline.plan.cost_constants import constants
from stepladder.pipeline.plan.gpu_cluster import parse_cluster, this_machine
from stepladder.pipeline.plan.planner import plan_recipe
from stepladder.pipeline.recipe import Recipe, load_recipe
from stepladder.pipeline.stages import get_stage

#: Seconds between two looks at the memory.
INTERVAL = 0.02


def memory_in_use() -> int:
    """Bytes of the GPU that are in use, or of this process."""
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return total - free
    return int(psutil.Process().memory_info().rss)


@contextmanager
def watched(found: dict[str, float]) -> Iterator[None]:
    """Measures time and peak memory of what happens within."""
    done = threading.Event()
    found["bytes"] = memory_in_use()

    def watch() -> None:
        while not done.wait(INTERVAL):
            found["bytes"] = max(found["bytes"], memory_in_use())

    looker = threading.Thread(target=watch, daemon=True)
    looker.start()
    started, worked = time.monotonic(), time.process_time()
    try:
        yield
    finally:
        found |= {"wall": time.monotonic() - started, "cpu": time.process_time() - worked}
        done.set()
        looker.join()


def run_one(recipe: Recipe, folder: Path, name: str) -> dict[str, float]:
    """Run one stage of a recipe whose earlier stages are done."""
    found: dict[str, float] = {}

    def measured(kind: str) -> Any:
        spec = get_stage(kind)

        def run(settings: Any, context: Any, task: Any) -> Any:
            with watched(found):
                return spec.run(settings, context, task)

        return replace(spec, run=run)

    runner.get_stage = measured
    run_recipe(recipe, folder, only=name, console=Console(stderr=True, quiet=True))
    return found


def measure(options: argparse.Namespace, names: list[str]) -> dict[str, dict[str, float]]:
    """Run all stages, each in a process."""
    found = {}
    for name in names:
        changes = [word for change in options.overrides for word in ("--set", change)]
        command = [sys.executable, __file__, options.recipe, "--out", str(options.out), *changes, "--stage", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        found[name] = json.loads(done.stdout.splitlines()[-1])
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--gpus")
    parser.add_argument("--stage", help=argparse.SUPPRESS)
    parser.add_argument("--time-error", type=float, default=0.3)
    parser.add_argument("--memory-error", type=float, default=0.15)
    parser.add_argument("--shortest", type=float, default=5.0)
    options = parser.parse_args()
    recipe = load_recipe(options.recipe, options.overrides)
    if options.stage is not None:
        print(json.dumps(run_one(recipe, options.out, options.stage)))
        return 0
    devices = constants()["devices"]
    cluster = this_machine(devices) if options.gpus is None else parse_cluster(options.gpus, devices)
    plan = plan_recipe(recipe, cluster, strategy="none")
    clock = "cpu" if cluster.is_cpu and torch.get_num_threads() == 1 else "wall"
    measured = measure(options, [stage.name for stage in recipe.stages])
    table = Table("stage", "predicted s", f"measured s ({clock})", "error", "predicted GB", "measured GB", "error")
    failed = 0
    for stage in plan.stages:
        if not (real := measured[stage.name]):
            continue  # it was done before
        seconds, size = stage.time.expected, stage.memory.expected
        slow, large = seconds / max(real[clock], 1e-9) - 1, size / real["bytes"] - 1
        judged = real[clock] >= options.shortest
        failed += judged and (abs(slow) > options.time_error or abs(large) > options.memory_error)
        table.add_row(
            stage.name,
            f"{seconds:,.1f}",
            f"{real[clock]:,.1f}",
            f"{slow:+.0%}",
            f"{size / 1e9:.2f}",
            f"{real['bytes'] / 1e9:.2f}",
            f"{large:+.0%}",
            style=None if judged else "dim",
        )
    total, real_total = plan.seconds()[0], sum(each.get(clock, 0.0) for each in measured.values())
    table.add_row("all", f"{total:,.1f}", f"{real_total:,.1f}", f"{total / max(real_total, 1e-9) - 1:+.0%}", "", "", "")
    Console(width=110).print(table)
    print(f"{failed} of {len(plan.stages)} stages miss by more than the limits")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
