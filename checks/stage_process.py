"""One process of `plan_against_run.py`: runs one stage of a recipe, and measures it with `stage_probe.py`.

In: one line on stdin, `{recipe, out, stage, result}`, after everything was imported. Out: the file `result`.
"""

import json
import os
import sys
import threading
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from stage_probe import INTERVAL, Probe, clock, install

from stepladder.core.errors import StepladderError
from stepladder.pipeline import run_recipe, runner
from stepladder.pipeline.recipe import Recipe
from stepladder.pipeline.stages import get_stage


def run_one(probe: Probe, recipe: Recipe, folder: Path, name: str) -> None:
    """Run one stage, and measure it."""
    install(probe, vllm="vllm" in json.dumps(recipe.plain(), default=str))
    process = psutil.Process()
    probe.baseline = int(process.memory_info().rss)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(INTERVAL):
            probe.look()

    def measured(kind: str) -> Any:
        spec = get_stage(kind)

        def run(settings: Any, context: Any, task: Any) -> Any:
            probe.notes["before_seconds"] = round(time.time() - process.create_time(), 3)
            with probe.part("stage", synchronize=True):
                return spec.run(settings, context, task)

        return replace(spec, run=run)

    runner.get_stage = measured  # type: ignore[attr-defined]
    looker = threading.Thread(target=watch, daemon=True)
    looker.start()
    started = clock()
    try:
        report = run_recipe(recipe, folder, only=name, console=Console(stderr=True, quiet=True))
        record = next((each for each in report.stages if each.name == name), None)
        probe.notes["summary"] = {} if record is None else record.summary
    finally:
        done.set()
        looker.join()
        probe.look()
        stage, compared = (probe.parts.get(part, [0, 0.0])[1] for part in ("stage", "compare"))
        # What the run does once: reading data, building its index, fingerprints.
        probe.notes |= {"seconds": stage + compared, "run_start_seconds": clock() - started - stage - compared}
        probe.notes["curves"] = _curves(folder / name)


def _curves(folder: Path) -> list[Any]:
    path = folder / "curves.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def main() -> None:
    """Import everything, wait for a stage, and run it."""
    for name in ("dpo.trl_trainer", "grpo.trainer", "prm.trainer", "rft.trainer", "sft.trainer"):
        import_module(f"stepladder.train.{name}")
    if "--vllm" in sys.argv:
        from stepladder.engines.vllm.engine import _import_vllm

        with suppress(StepladderError):
            _import_vllm()
    ready = time.time() - psutil.Process().create_time()
    line = sys.stdin.readline()
    if not line:
        return
    job, probe = json.loads(line), Probe()
    error = ""
    try:
        run_one(probe, Recipe.read(job["recipe"], job["recipe"]["name"]), Path(job["out"]), job["stage"])
    except BaseException:  # noqa: BLE001 - whatever it is, it is stored with what was measured until then
        error = traceback.format_exc()
    result = probe.plain() | {"import_seconds": round(ready, 3)}
    if error:
        result |= {"error": error.strip().splitlines()[-1], "traceback": error[-4000:]}
    Path(job["result"]).write_text(json.dumps(result, default=str), encoding="utf-8")
    sys.stdout.flush()
    os._exit(int(bool(error)))  # libraries may keep threads


if __name__ == "__main__":
    main()
