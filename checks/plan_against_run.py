"""Does `stepladder plan` predict what a run takes? Runs small recipes and compares time and peak memory of every stage.

    python checks/plan_against_run.py --suite fit --run nano --out /tmp/plan [--model smollm2=DIR] [--data FOLDER]
    python checks/plan_against_run.py --recipe prorag-nano --out /tmp/plan [--set stages.sft.questions=24]
    python checks/plan_against_run.py --measure --out /tmp/plan          what `stepladder plan --measure` measures
    python checks/plan_against_run.py --compare plan.json                predicts again, without running anything

In: runs of `plan_runs.yaml`, or a recipe. Out: a table, and OUT/plan.json with everything that was measured
(`stage_probe.py`), rewritten after every stage. Each stage runs in a process of its own, so that its memory is its own,
with a time limit; a stage that fails is reported, and the others go on. The next process imports its libraries while a
stage runs on a GPU, and waits.

There are two predictions of the time: from the recipe, which assumes a policy that writes episodes like the gold ones;
and from the amounts that were measured (tokens, steps, updates), which judges the rates alone. Time is that of the
clock; on a CPU with one thread the processor's, because other programs would count otherwise. The exit status is 1 if a
stage of at least --shortest seconds misses by more than --time-error or --memory-error.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import Recipe, load_recipe

HERE = Path(__file__).parent
#: Models whose shape `--measure` uses.
MEASURED = ("nano", "smollm2-135m", "Qwen/Qwen2.5-1.5B-Instruct")


# --- describing and running --------------------------------------------------------------------------------------


def describe(recipe: Recipe, gpus: str | None) -> dict[str, Any]:
    """What the plan of a recipe depends on: the machine, the shape of the model, the lengths of transcripts."""
    import torch

    from stepladder.pipeline.plan.cost_constants import constants
    from stepladder.pipeline.plan.gpu_cluster import parse_cluster, this_machine
    from stepladder.pipeline.plan.model_shape import find_shape
    from stepladder.pipeline.plan.planner import find_profile

    known = constants()
    cluster = this_machine(known["devices"]) if gpus is None else parse_cluster(gpus, known["devices"])
    return {
        "recipe": recipe.plain(),
        "cluster": asdict(cluster),
        "shape": asdict(find_shape(recipe.shared.policy, known["models"])),
        "profile": asdict(find_profile(recipe)),
        "threads": torch.get_num_threads(),
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "date": time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()),
    }


def measure_machine() -> dict[str, Any]:
    """The rates that `stepladder plan --measure` finds, by model."""
    from stepladder.pipeline.plan.cost_constants import constants
    from stepladder.pipeline.plan.gpu_cluster import this_machine
    from stepladder.pipeline.plan.machine_rates import measure_rates
    from stepladder.pipeline.plan.model_shape import find_shape

    known = constants()
    found: dict[str, Any] = {}
    for name in MEASURED:
        started = time.monotonic()
        try:
            found[name] = measure_rates(find_shape(name, known["models"]), this_machine(known["devices"]))
        except (RuntimeError, ValueError, StepladderError) as error:  # the other models go on
            found[name] = {"error": f"{type(error).__name__}: {error}"}
        found[name]["seconds"] = round(time.monotonic() - started, 1)
        print(f"{name}: {json.dumps(found[name], default=str)}", flush=True)
    return found


def in_process(mode: str, options: argparse.Namespace, recipe: Recipe | None, seconds: float) -> Any:
    """Run `describe` or `measure_machine` in another process: this one must not use the GPU."""
    job = json.dumps({"mode": mode, "recipe": None if recipe is None else recipe.plain(), "gpus": options.gpus})
    path = options.out / f"{mode}.json"
    path.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--out", str(options.out), "--job", job]
    process = subprocess.Popen(command, start_new_session=True)
    wait(process, seconds)
    return json.loads(path.read_text()) if path.is_file() else {"error": f"{mode} ended with {process.returncode}"}


def wait(process: subprocess.Popen[Any], seconds: float) -> bool:
    """Wait for a process; at the time limit it is killed with its children."""
    try:
        process.wait(seconds)
        return True
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return False


class Workers:
    """Processes for stages. With `ahead`, the next one imports its libraries while a stage runs."""

    def __init__(self, out: Path, *, ahead: bool) -> None:
        self.out, self.ahead = out, ahead
        self.waiting: dict[bool, subprocess.Popen[str]] = {}

    def _start(self, vllm: bool) -> subprocess.Popen[str]:
        command = [sys.executable, str(HERE / "stage_process.py"), *(["--vllm"] if vllm else [])]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)

    def run(self, recipe: Recipe, folder: Path, stage: str, seconds: float, *, more: bool) -> dict[str, Any]:
        """Run a stage. `more`: another one will follow."""
        vllm = "vllm" in json.dumps(recipe.plain())
        process = self.waiting.pop(vllm, None) or self._start(vllm)
        if self.ahead and more:
            self.waiting[vllm] = self._start(vllm)
        result = self.out / "result.json"
        result.unlink(missing_ok=True)
        job = {"recipe": recipe.plain(), "out": str(folder), "stage": stage, "result": str(result)}
        assert process.stdin is not None
        started = time.monotonic()
        process.stdin.write(json.dumps(job, default=str) + "\n")
        process.stdin.close()
        in_time = wait(process, seconds)
        if result.is_file():
            found: dict[str, Any] = json.loads(result.read_text())
        else:
            why = f"ended with status {process.returncode}" if in_time else f"more than {seconds:.0f} seconds"
            found = {"error": why}
        return found | {"process_wall": round(time.monotonic() - started, 2)}

    def close(self) -> None:
        """End the waiting processes."""
        for process in self.waiting.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_stages(name: str, entry: dict[str, Any], recipe: Recipe, options: argparse.Namespace) -> Iterator[None]:
    """Run the stages of a recipe; yields after each."""
    folder = options.out / name
    inputs = {stage.name: set(stage.inputs.values()) for stage in recipe.stages}
    workers = Workers(options.out, ahead=entry["cluster"]["device"] != "cpu")
    ends = time.monotonic() + 60 * options.minutes
    names = entry["stages_run"]
    try:
        for number, stage in enumerate(names):
            failed = sorted(each for each in inputs[stage] if "error" in entry["stages"].get(each, {}))
            left = ends - time.monotonic()
            if failed:
                found = {"error": f"not run: {', '.join(failed)} failed"}
            elif left < 5:
                found = {"error": f"not run: {options.minutes:g} minutes were over"}
            else:
                limit = min(options.stage_seconds, left)
                found = workers.run(recipe, folder, stage, limit, more=number + 1 < len(names))
            entry["stages"][stage] = found
            said = found.get("error") or f"{found.get('seconds', 0):.1f} s, {found['memory']['peak'] / 1e9:.2f} GB"
            print(f"{name} {stage}: {said}", file=sys.stderr, flush=True)
            yield
    finally:
        workers.close()


def planned_runs(options: argparse.Namespace) -> Iterator[tuple[str, Recipe, list[str]]]:
    """The runs that were asked for: name, recipe, stages."""
    if options.recipe is not None:
        recipe = load_recipe(options.recipe, options.overrides)
        every = [stage.name for stage in recipe.stages]
        yield recipe.name, recipe, options.stages.split(",") if options.stages else every
        return
    models = dict(each.split("=", 1) for each in options.model)
    suite = yaml.safe_load((HERE / "plan_runs.yaml").read_text())[options.suite]
    for name, each in suite.items():
        if options.run and name not in options.run:
            continue
        changes = [*each["set"], *options.overrides]
        if name in models:
            changes.append(f"policy={models[name]}")
        if options.data:
            changes += [f"data={{name: {options.data}}}", "search.k=3"]
        recipe = load_recipe(each["recipe"], changes)
        yield f"{options.suite}-{name}", recipe, list(each["stages"])


def make_runs(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything that was asked for, and store it."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "plan.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"runs": {}}

    def save() -> None:
        path.write_text(json.dumps(found, default=str), encoding="utf-8")

    if options.measure:
        found["measured_rates"] = in_process("measure", options, None, 60 * options.minutes)
        save()
    for name, recipe, stages in planned_runs(options) if options.suite or options.recipe else ():
        entry = in_process("describe", options, recipe, 120)
        if "error" in entry:
            print(f"{name}: {entry['error']}", file=sys.stderr)
            continue
        entry |= {"stages_run": stages, "stages": {}}
        found["runs"][name] = entry
        for _ in run_stages(name, entry, recipe, options):
            save()
    save()
    return found


# --- comparing ---------------------------------------------------------------------------------------------------


def judged(entry: Mapping[str, Any], options: argparse.Namespace) -> tuple[Any, int, int]:
    """A table of one run, how many stages miss the limits, and how many were judged."""
    from plan_comparison import compare, table_of

    rows = compare(entry, shortest=options.shortest)
    missed = sum(row.judged and row.misses(options.time_error, options.memory_error) for row in rows)
    return table_of(rows), missed, sum(row.judged for row in rows)


def show(found: Mapping[str, Any], options: argparse.Namespace) -> int:
    """Print the tables of all runs."""
    from rich.console import Console

    total = 0
    for name, entry in found["runs"].items():
        table, missed, count = judged(entry, options)
        print(f"\n{name}: {entry['shape']['name']} on {entry['machine']}, {entry['date']}")
        Console(width=150).print(table)
        limits = f"{options.time_error:.0%} of the time or {options.memory_error:.0%} of the memory"
        print(f"{missed} of {count} stages of {options.shortest:g} seconds or more miss by more than {limits}")
        total += missed
    return int(total > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", help="a suite of plan_runs.yaml")
    parser.add_argument("--run", action="append", default=[], help="a run of the suite; repeatable; default: all")
    parser.add_argument("--recipe")
    parser.add_argument("--stages", help="of --recipe, separated by commas; default: all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--model", action="append", default=[], help="RUN=FOLDER: the policy of a run")
    parser.add_argument("--data", help="a folder of questions instead of Atlas")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--gpus")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--minutes", type=float, default=4.0, help="limit of one run")
    parser.add_argument("--stage-seconds", type=float, default=120.0)
    parser.add_argument("--compare", type=Path, nargs="*", default=[])
    parser.add_argument("--time-error", type=float, default=0.3)
    parser.add_argument("--memory-error", type=float, default=0.15)
    parser.add_argument("--shortest", type=float, default=2.0)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job is not None:
        job = json.loads(options.job)
        recipe = None if job["recipe"] is None else Recipe.read(job["recipe"], job["recipe"]["name"])
        result = measure_machine() if recipe is None else describe(recipe, job["gpus"])
        (options.out / f"{job['mode']}.json").write_text(json.dumps(result, default=str), encoding="utf-8")
        return 0
    if options.compare:
        runs = {
            f"{path.stem} {name}": run
            for path in options.compare
            for name, run in json.loads(path.read_text())["runs"].items()
        }
        return show({"runs": runs}, options)
    if options.out is None:
        parser.error("--out is needed")
    return show(make_runs(options), options)


if __name__ == "__main__":
    sys.exit(main())
