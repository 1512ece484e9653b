"""Where the time of a GRPO update goes: weight sync, rollout, scoring and update, by engine and by version of the code.

    python benchmarks/grpo_update.py --run runs/qwen1.5b                        # vLLM and the engine on transformers
    python benchmarks/grpo_update.py --run runs/qwen1.5b --before OTHER/src     # and both with other code

In: a run folder with the stages `sft` and `prm`, such as of recipes/prorag-qwen1.5b.yaml. Out: a table, the median of
the updates but the first one, which compiles kernels and sends all weights. The settings are those of the recipe's
stage `grpo`; every way has the same policy, reward model, questions and seeds, in a process of its own, one after the
other. Episodes differ, since engines round differently, so the tokens that were sampled are in the table.

Weight sync is timed here, around what brings the weights to the engine, with the GPU's work waited for: code that does
not report it can be compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PARTS = ("sync", "rollout", "scoring", "update")


def read_recipe(file: Path) -> Any:
    """The recipe of a run, without the settings that this code does not have: it may be older than the run."""
    from stepladder.pipeline.recipe import Recipe, read_yaml
    from stepladder.pipeline.stages import get_stage

    data = read_yaml(file)
    for name, stage in data["stages"].items():
        spec = get_stage(stage["kind"])
        known = {"kind", *spec.inputs, *spec.config.model_fields}
        if unknown := sorted(stage.keys() - known):
            print(f"{name}: this code has no {', '.join(unknown)}", file=sys.stderr)
        data["stages"][name] = {key: value for key, value in stage.items() if key in known}
    return Recipe.read(data, str(file))


def measure(chosen: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    """Some updates with one engine, in this process. A row for each."""
    import torch

    from stepladder.pipeline.resources import RunContext
    from stepladder.train.grpo.config import GRPOConfig
    from stepladder.train.grpo.trainer import train_grpo
    from stepladder.train.loop import policy_session
    from stepladder.train.loop.context import TrainingContext

    recipe = read_recipe(chosen.run / "recipe.yaml")
    context = RunContext(recipe.shared)
    (stage,) = (stage for stage in recipe.stages if stage.kind == "grpo")
    settings: Any = stage.settings
    assert isinstance(settings, GRPOConfig)
    groups = chosen.episodes // settings.num_generations
    settings = settings.model_copy(
        update={
            "engine": chosen.engine,
            "batch_size": chosen.episodes,
            "questions": groups * chosen.updates,
            "num_train_epochs": 1,
            "dev_questions": 0,
            "eval_on_start": False,
            "monitors": settings.monitors.model_copy(update={"stop": False}),
        }
    )
    seconds: list[float] = []
    make = policy_session.make_rollout_engine

    def timed(*arguments: Any, **options: Any) -> Any:
        engine, generating = make(*arguments, **options)

        @contextmanager
        def enter() -> Iterator[None]:
            began = time.monotonic()
            with generating():
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                seconds.append(time.monotonic() - began)
                yield

        return engine, enter

    policy_session.make_rollout_engine = timed
    scorer = context.scorer(settings.scorer, chosen.run / "prm" / "reward") if settings.scores_steps else None
    training = TrainingContext(
        context.agent,
        context.split("train"),
        (),
        context.retriever,
        context.episode(),
        folder,
        device=recipe.shared.device,
        max_batch=recipe.shared.batch_size,
    )
    train_grpo(str(chosen.run / "sft" / "policy"), training, settings, scorer)
    rows = [json.loads(line) for line in (folder / "curves.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "rollout_seconds" in row]
    for row, sync in zip(rows, seconds, strict=True):
        if "sync_seconds" not in row:  # it is a part of the rollout there
            row["rollout_seconds"] -= sync
        row["sync_seconds"] = sync
    return rows


def in_process(chosen: argparse.Namespace, engine: str, source: Path | None) -> list[dict[str, float]]:
    """The same in a process of its own, which imports the code of `source`."""
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = f"{source.absolute()}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    with TemporaryDirectory() as temporary:
        out = Path(temporary) / "rows.json"
        command = [sys.executable, __file__, "--run", str(chosen.run), "--episodes", str(chosen.episodes)]
        command += ["--updates", str(chosen.updates), "--engine", engine, "--part", str(out)]
        if subprocess.run(command, env=environment, check=False, timeout=chosen.timeout).returncode:
            return []
        return json.loads(out.read_text())


def show(ways: dict[str, list[dict[str, float]]], chosen: argparse.Namespace) -> None:
    print(f"\n{chosen.run.name}: GRPO updates of {chosen.episodes} episodes, seconds, median of {chosen.updates - 1}")
    print(
        f"{'way':28}" + "".join(f"{part:>10}" for part in PARTS) + f"{'in all':>10}{'tokens':>10}{'F1':>8}{'gap':>10}"
    )
    for name, rows in ways.items():
        if not rows:
            print(f"{name:28}failed")
            continue
        rest = rows[1:] or rows

        def middle(key: str, rest: list[dict[str, float]] = rest) -> float:
            return statistics.median(row.get(key, float("nan")) for row in rest)

        cells = [middle(f"{part}_seconds") for part in PARTS]
        total = statistics.median(sum(row[f"{part}_seconds"] for part in PARTS) for row in rest)
        line = f"{name:28}" + "".join(f"{cell:>10.2f}" for cell in cells) + f"{total:>10.2f}{middle('written'):>10,.0f}"
        print(line + f"{middle('f1'):>8.3f}{middle('logprob_gap_mean'):>10.4f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run folder with the stages sft and prm")
    parser.add_argument("--before", type=Path, help="the src folder of other code to compare with")
    parser.add_argument("--engine", default="vllm,transformers")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=240, help="seconds of one way")
    parser.add_argument("--part", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run is None:
        print("left out: it needs --run RUN, with the stages sft and prm")
        return 0
    if chosen.part is not None:
        with TemporaryDirectory() as temporary:
            chosen.part.write_text(json.dumps(measure(chosen, Path(temporary) / "grpo")))
        return 0
    ways: dict[str, list[dict[str, float]]] = {}
    for engine in chosen.engine.split(","):
        for label, source in (("before", chosen.before), ("now", None)):
            if label == "before" and source is None:
                continue
            ways[f"{engine}, {label}"] = in_process(chosen, engine, source)
            show(ways, chosen)
    return int(not all(ways.values()))


if __name__ == "__main__":
    sys.exit(main())
