"""Do two commits give the same scores? Runs one small recipe with all stages at both and compares every number.

    python checks/same_scores.py 4aba644 HEAD --out runs/same-scores

In: two commits. Out: one line per stage and number that differs, or the number of values that are equal; exit status 1
on any difference. Each commit is checked out into its own worktree and runs in this environment with one thread and
seed 0 (about 15 minutes per commit on two slow cores). Finished runs in --out are reused, so an interrupted check
resumes. Times, paths and versions are not compared.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

RECIPE = Path(__file__).with_name("all_stages.yaml")
ROOT = Path(__file__).parents[1]
#: The first commit that reads the recipe keys of `all_stages.yaml`; older ones get the old keys.
RENAMED_AT = "src/stepladder/core/config.py"
#: New key -> old key, by stage; None is the top level.
OLD_KEYS: dict[str | None, dict[str, str]] = {
    None: {"batch_size": "batch"},
    "prm": {"corruptions": "spoilt"},  # word-check: ignore
    "grpo": {"normalize": "normalise", "min_std": "least_spread"},
}
OLD_TRAINING_KEYS = {
    "num_train_epochs": "epochs",
    "batch_size": "batch",
    "learning_rate": "lr",
    "eval_steps": "eval_every",
    "num_generations": "samples",
}
#: Measured times differ from run to run.
_TIMES = ("seconds", "per_second")
#: Summary numbers that were renamed: old -> new.
_RENAMED = {"as it is": "raw", "segments_reencoded": "segments_retokenized"}


def recipe_for(worktree: Path) -> str:
    """The recipe in the vocabulary of a commit."""
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    if (worktree / RENAMED_AT).exists():
        return yaml.safe_dump(recipe, sort_keys=False)
    recipe = _with_old_keys(recipe, OLD_KEYS[None])
    for name, stage in recipe["stages"].items():
        kind = stage.get("kind", name)
        stage = _with_old_keys(stage, {**OLD_TRAINING_KEYS, **OLD_KEYS.get(kind, {})})
        if stage.get("policy") == "oracle":
            stage["policy"] = "gold"
        recipe["stages"][name] = stage
    return yaml.safe_dump(recipe, sort_keys=False)


def _with_old_keys(settings: dict[str, Any], renamed: dict[str, str]) -> dict[str, Any]:
    return {renamed.get(key, key): value for key, value in settings.items()}


def worktree_of(commit: str, out: Path) -> Path:
    """A checkout of a commit, made if it is not there."""
    revision = _git("rev-parse", "--short=10", commit)
    worktree = out / f"worktree-{revision}"
    if not worktree.exists():
        _git("worktree", "prune")
        _git("worktree", "add", "--detach", str(worktree), revision)
    return worktree


def run_at(commit: str, out: Path) -> Path:
    """The folder of the run at a commit, made if it is not there."""
    worktree = worktree_of(commit, out)
    revision = worktree.name.removeprefix("worktree-")
    run = out / f"run-{revision}"
    recipe = out / f"recipe-{revision}.yaml"
    recipe.write_text(recipe_for(worktree), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(worktree / "src"), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "stepladder", "run", str(recipe), "--out", str(run)]
    print(f"{commit} ({revision}): {' '.join(command[1:])}", flush=True)
    subprocess.run(command, env=environment, cwd=out, check=True)
    return run


def numbers_of(run: Path) -> dict[str, Any]:
    """Every value of every stage summary, question score and generated text, by a dotted name."""
    found: dict[str, Any] = {}
    for record in sorted(run.glob("*/stage.json")):
        stage = record.parent.name
        _flatten(f"{stage}", json.loads(record.read_text(encoding="utf-8"))["summary"], found)
        scores = record.parent / "evaluation" / "scores.jsonl"
        for line in scores.read_text(encoding="utf-8").splitlines() if scores.exists() else ():
            row = json.loads(line)
            _flatten(f"{stage}.{row['question_id']}", row, found)
        for path in sorted(record.parent.rglob("*.safetensors")):
            found[f"{stage}.{path.relative_to(record.parent)}"] = _digest(path)
    return found


def _flatten(prefix: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            if not key.endswith(_TIMES):
                _flatten(f"{prefix}.{_RENAMED.get(key, key)}", each, found)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _flatten(f"{prefix}[{index}]", each, found)
    else:
        found[prefix] = value


def _digest(path: Path) -> str:
    return subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2, metavar="COMMIT")
    parser.add_argument("--out", type=Path, default=Path("runs/same-scores"), help="where runs and worktrees go")
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    first, second = (numbers_of(run_at(commit, out)) for commit in arguments.commits)
    for name in [name for name in first if name.count(".") == 2 and name.endswith((".f1.mean", ".em.mean"))]:
        print(f"{name}: {first[name]!r} {second.get(name)!r}")
    different = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    for name in different:
        print(f"DIFFERENT {name}: {first.get(name)!r} {second.get(name)!r}")
    total = len({**first, **second})
    print(f"{total - len(different):,} of {total:,} values are equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
