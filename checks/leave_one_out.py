"""Whether a process reward model knows mistakes of a kind that it was not trained on: nano on Atlas.

    python checks/leave_one_out.py --out DIR [--seeds 0 1 2] [--kind misread ...]

For every seed, the stages sft and explore of the recipe prorag-nano are run once. Then one reward model is trained on
all kinds of mistakes, and one for each kind without it (and without the kinds that resemble it). They start from the
policy, because nano-critic was pretrained on such mistakes, and have few trees and no episodes: a policy makes mistakes
of all kinds. Printed for each kind is how often a faulty step in dev chains with that mistake scores below a good step
of intact chains (an AUC), with and without the kind in training: means over seeds, with the 95% interval of their
difference.

Everything is kept in DIR: the same command resumes.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

from stepladder.core.io.files import atomic_folder
from stepladder.oracle.control_chains import CHAINS
from stepladder.oracle.corruptions import CORRUPTIONS
from stepladder.pipeline.recipe import load_recipe

#: All kinds of mistakes.
KINDS = (*CHAINS[1:], *CORRUPTIONS)
#: An answer before everything is found, in three forms: what is learnt of one of them helps with the others.
_EARLY = ("truncated", "answer_first", "early_answer")
#: The reward model that was trained on all kinds.
ALL = "all"
#: Few trees, whose mistakes cannot be left out; and the settings of the reward model and of its examination.
EXPLORE: dict[str, Any] = {"questions": 8, "simulations": 8}
PRM: dict[str, Any] = {"model": None, "chains": 160, "corruptions": 5, "episodes": 0, "num_train_epochs": 2}
EXAMINATION: dict[str, Any] = {
    "kind": "prm-eval", "policy": "sft", "split": "dev", "questions": 100, "num_generations": 1, "held_out_pairs": False
}  # fmt: skip


def left_out(kind: str) -> tuple[str, ...]:
    """The kinds that a model does not see: the kind, and those that resemble it."""
    return () if kind == ALL else _EARLY if kind in _EARLY else (kind,)


def recipe_for(seed: int, kind: str | None) -> dict[str, Any]:
    """The recipe up to the trees (None), or up to the examination of the reward model without this kind."""
    changes = [f"stages.prm.{name}={json.dumps(value)}" for name, value in PRM.items()]
    plain = load_recipe("prorag-nano", [f"seed={seed}", *changes]).plain()
    stages = {name: plain["stages"][name] for name in ("sft", "explore")}
    stages["explore"] |= EXPLORE
    if kind is not None:
        stages["prm"] = plain["stages"]["prm"] | {"leave_out": list(left_out(kind))}
        stages["eval-prm"] = EXAMINATION
    return plain | {"stages": stages}


def run(recipe: dict[str, Any], folder: Path) -> None:
    """Run all stages in a process of their own."""
    path = folder.with_suffix(".yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    words = [sys.executable, "-m", "stepladder", "run", str(path), "--out", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr[-2000:] or done.stdout[-2000:]}")


def aucs(seed: int, kind: str, folder: Path) -> dict[str, float]:
    """By kind of mistake, the AUC of the reward model that was trained without `kind`."""
    base = folder / f"seed-{seed}" / "base"
    trained = base.with_name("-".join(("without", *left_out(kind))))
    run(recipe_for(seed, None), base)
    if not trained.exists():
        with atomic_folder(trained) as fresh:
            shutil.copytree(base, fresh, dirs_exist_ok=True)
    run(recipe_for(seed, kind), trained)
    summary = json.loads((trained / "eval-prm" / "examination" / "summary.json").read_text(encoding="utf-8"))
    found = {name: each.get("faulty_steps") for name, each in summary["chains"].items()}
    return {name: each["mean"] for name, each in found.items() if each is not None}


def row(kind: str, seen: Sequence[float], unseen: Sequence[float]) -> str:
    """A line of the table: the AUC with and without the kind, and the difference with its interval."""
    gaps, interval = np.subtract(seen, unseen), ""
    if len(gaps) > 1:
        half = stats.t.ppf(0.975, len(gaps) - 1) * np.std(gaps, ddof=1) / len(gaps) ** 0.5
        interval = f" +-{half:.3f}"
    return f"{kind:13} {np.mean(seen):.3f} {np.mean(unseen):.3f} {np.mean(gaps):+.3f}{interval}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    chosen = parser.parse_args()
    kinds = chosen.kind or list(KINDS)
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for seed in chosen.seeds:
        with_all = aucs(seed, ALL, chosen.out)
        for kind in kinds:
            without = aucs(seed, kind, chosen.out)
            if kind in with_all and kind in without:  # no dev chain may have room for a kind of mistake
                found[kind].append((with_all[kind], without[kind]))
                print(f"seed {seed}, {row(kind, *([each] for each in found[kind][-1]))}", flush=True)
    print(f"\n{len(chosen.seeds)} seeds: mistake, AUC trained on it, not trained on it, difference")
    for kind, pairs in found.items():
        if pairs:
            print(row(kind, *map(list, zip(*pairs))))


if __name__ == "__main__":
    main()
