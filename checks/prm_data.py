"""What a process reward model learns from which data: nano on Atlas, several seeds, one change at a time.

    python checks/prm_data.py --out DIR [--seeds 0 1 2] [--before OTHER/src] [--variant chains ...] [--split test]

`--critic` names another start of the reward models than nano-critic, for the variants of that name:
`python -m pretrain.train --critic src/stepladder/models/nano --chains 0.3 ...` makes one.

For every seed, the stages sft, explore and pairs of the recipe prorag-nano are run once. Then a reward model is trained
for each variant, and all of them score the same episodes: 8 of each of 100 questions at three temperatures. Printed are
AUCs against the gold judge at temperature 1, and the F1 of the chosen episode, as means over seeds with 95% intervals.

Everything is kept in DIR: the same command resumes. `--before` trains the first variant with other code.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy import stats

from stepladder.core.answer_metrics import score_question
from stepladder.core.io.files import atomic_folder
from stepladder.core.trace import Trajectory
from stepladder.data.sampling import sample_questions
from stepladder.driver import Driver
from stepladder.evaluation.prm.calibration import gold_agreement, graded_steps
from stepladder.evaluation.prm.selection import selection_report
from stepladder.judges.prm.reward_model import ProcessRewardModel
from stepladder.pipeline.recipe import load_recipe
from stepladder.pipeline.resources import RunContext
from stepladder.train.transcripts.sampled_episodes import sample_episodes

QUESTIONS, EPISODES = 100, 8
#: The first one is what AUCs are measured at.
TEMPERATURES = (1.0, 0.7, 0.5)
#: In place of the model of --critic.
CRITIC = "CRITIC"
MANY: dict[str, Any] = {"episodes": 512, "num_generations": 8}
#: Overrides of the stage prm.
VARIANTS: dict[str, dict[str, Any]] = {
    "before": {},
    "chains": {},
    "chains, answers masked": {"chain_answers": False},
    "chains, episodes": {"episodes": 80},
    "chains, answers masked, episodes": {"chain_answers": False, "episodes": 80},
    "chains, least": {"answer_score": "least"},
    "chains, episodes, least": {"episodes": 80, "answer_score": "least"},
    "chains, episodes, after retrieval": {"episodes": 80, "score_after_retrieval": True},
    "chains, many episodes": MANY,
    "chains, many episodes, least": {**MANY, "answer_score": "least"},
    "chains, most episodes, least": {"episodes": 800, "num_generations": 8, "answer_score": "least"},
    "critic": {"model": CRITIC},
    "critic, episodes": {"model": CRITIC, "episodes": 80},
    "critic, episodes, least": {"model": CRITIC, "episodes": 80, "answer_score": "least"},
    "critic, many episodes": {**MANY, "model": CRITIC},
    "critic, many episodes, least": {**MANY, "model": CRITIC, "answer_score": "least"},
}  # fmt: skip
#: Settings that other code may not know.
NEW = ("chain_answers", "answer_score", "score_after_retrieval", "leave_out", "label_noise", "leave_out_relations")
#: Columns: title, and where to find it in a result.
COLUMNS = {
    "AUC": ("auc", "mean"),
    "answers": ("answers", "auc", "mean"),
    "difficulty": ("answers", "difficulty", "mean"),
    "peers": ("peers", "all", "mean"),
}
#: The same for every temperature.
CHOICES = ("greedy", "random", "vote", "last", "least", "mean", "weighted", "oracle")


def write_recipe(path: Path, seed: int, changes: dict[str, Any] | None) -> Path:
    """The recipe up to the pairs, or with `changes` up to the reward model."""
    plain = load_recipe("prorag-nano", [f"seed={seed}", "stages.prm.episodes=0"]).plain()
    names = ("sft", "explore", "pairs") if changes is None else ("sft", "explore", "pairs", "prm")
    plain["stages"] = {name: plain["stages"][name] for name in names}
    if changes is not None:
        settings = plain["stages"]["prm"] | changes
        plain["stages"]["prm"] = {name: each for name, each in settings.items() if each is not None or name not in NEW}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    return path


def run(recipe: Path, folder: Path, source: Path | None = None) -> None:
    """Run all stages in a process of their own, with the code of `source`."""
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(source.absolute()), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "stepladder", "run", str(recipe), "--out", str(folder)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{folder}: {done.stderr[-2000:] or done.stdout[-2000:]}")


def sample(recipe: Path, policy: Path, folder: Path, split: str) -> tuple[dict[float, list[Trajectory]], float]:
    """Sampled episodes of the questions by temperature, and the F1 of greedy ones."""
    loaded = load_recipe(str(recipe))
    context, seed = RunContext(loaded.shared), loaded.seed
    questions, config = sample_questions(context.split(split), QUESTIONS, seed), context.episode()
    with context.engine(str(policy)) as engine:

        def of(temperature: float, count: int) -> list[Trajectory]:
            settings = replace(config, sampling=replace(config.sampling, temperature=temperature))
            driver, kept = Driver(engine, context.retriever), folder / f"{split}-{temperature:g}"
            return sample_episodes(kept, driver, context.agent, questions, settings, num_generations=count, seed=seed)

        greedy, sampled = of(0.0, 1), {each: of(each, EPISODES) for each in TEMPERATURES}
    f1 = [score_question(each.answer, each.question).f1 for each in greedy]
    return sampled, float(np.mean(f1))


def examine(reward: Path, episodes: Mapping[float, Sequence[Trajectory]]) -> dict[str, Any]:
    """The numbers of a reward model on these episodes."""
    model = ProcessRewardModel.load(str(reward), dtype="fp32")
    found: dict[str, Any] = {}
    for temperature, trajectories in episodes.items():
        scores = model.score_logits(trajectories)
        steps = graded_steps(trajectories, scores)
        report = selection_report(steps, trajectories, scores)
        found = found or {**gold_agreement(steps), **report}
        found[f"best_of, T = {temperature:g}"] = report["best_of"]
    return found


def of_seed(seed: int, variants: Sequence[str], chosen: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The results of all variants, by name."""
    folder = chosen.out / f"seed-{seed}"
    base = folder / "base"
    recipe = write_recipe(folder / "base.yaml", seed, None)
    if not (base / "pairs" / "stage.json").exists():
        run(recipe, base)
    episodes, greedy = sample(recipe, base / "sft" / "policy", folder, chosen.split)
    found = {}
    for number, name in enumerate(variants):
        result = folder / chosen.split / f"{name}.json"
        result.parent.mkdir(exist_ok=True)
        if not result.exists():
            trained = folder / f"variant-{name.replace(', ', '-').replace(' ', '-')}"
            if name != "before" and not trained.exists():
                with atomic_folder(trained) as fresh:
                    shutil.copytree(base, fresh, dirs_exist_ok=True)
            changes = VARIANTS[name] if name != "before" else dict.fromkeys(NEW)
            if changes.get("model") == CRITIC:
                changes = {**changes, "model": str(chosen.critic.absolute())}
            run(
                write_recipe(trained.with_suffix(".yaml"), seed, changes),
                trained,
                chosen.before if name == "before" else None,
            )
            numbers = examine(trained / "prm" / "reward", episodes) | {"greedy": greedy}
            result.write_text(json.dumps(numbers, indent=1), encoding="utf-8")
        found[name] = json.loads(result.read_text())
        print(f"seed {seed}, {name} ({number + 1} of {len(variants)}): {row_of([found[name]])}", flush=True)
    return found


def columns() -> dict[str, tuple[str, ...]]:
    """All columns."""
    found = dict(COLUMNS)
    for temperature in TEMPERATURES:
        for name in CHOICES:
            path = ("greedy",) if name == "greedy" else (f"best_of, T = {temperature:g}", name, "mean")
            found[f"{name} {temperature:g}"] = path
    return found


def row_of(results: Sequence[dict[str, Any]]) -> str:
    """Means over seeds, with intervals from two seeds on."""
    cells = []
    for title, path in columns().items():
        values = [float(reduce(lambda part, key: part[key], path, each)) for each in results]  # type: ignore[arg-type]
        mean = float(np.mean(values))
        half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5 if values[1:] else 0.0
        cells.append(f"{title} {mean:.3f}" + (f" +-{half:.3f}" if values[1:] else ""))
    return ", ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--before", type=Path, help="the src folder of other code, for the variant 'before'")
    parser.add_argument("--critic", type=Path, help="a model folder, for the variants with a critic")
    parser.add_argument("--split", default="dev", help="whose questions the episodes are of")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="default: all")
    chosen = parser.parse_args()
    names = [
        name
        for name in chosen.variant or VARIANTS
        if (name != "before" or chosen.before) and (not name.startswith("critic") or chosen.critic)
    ]
    by_seed = [of_seed(seed, names, chosen) for seed in chosen.seeds]
    print(f"\n{len(by_seed)} seeds")
    for name in names:
        print(f"{name:34} {row_of([each[name] for each in by_seed])}")


if __name__ == "__main__":
    main()
