"""Real questions, a pretrained model: what each stage brings on HotpotQA, 2WikiMultiHopQA and MuSiQue.

    python experiments/real_questions.py --out runs/real --policy smollm2-135m --seeds 2 --jobs 3
    python experiments/real_questions.py --out runs/real --report

For every seed: the recipe prorag-smollm2 up to its refinement, then reinforcement learning from there by the answer
alone, by the answer and graded steps, and by the answer alone with four times the questions; and the recipe
reasonrag-smollm2. All are evaluated on the same questions. `--search hybrid` does the same over an index of BM25 and
embeddings; give it another folder. Every run is a folder and the same command goes on where it was stopped.

The table is printed, and written as `table.json` beside the runs: F1 and EM by data set with intervals over questions,
of all seeds together, and each stage less the one before it.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

SETS = ("hotpotqa", "2wikimultihopqa", "musique")
#: Questions of an update of the reinforcement learning: 256 episodes, eight of each.
AN_UPDATE = 32
#: The arms: what is learnt from, and how often each question is played. All make as many updates.
ARMS = {"outcome": ("outcome", 4), "dual": ("dual", 4), "outcome-4x": ("outcome", 1)}
#: The rows of the table: where the evaluation is, and which row it is compared with.
ROWS = {
    "warm-up": ("shared/after", None),
    "+ RFT": ("shared/refined", "warm-up"),
    "+ GRPO, answer alone": ("outcome/trained", "+ RFT"),
    "+ GRPO, answer and steps": ("dual/trained", "+ GRPO, answer alone"),
    "+ GRPO, answer alone, 4x questions": ("outcome-4x/trained", "+ GRPO, answer and steps"),
    "+ reward model choosing of 8": ("dual/guided", "+ GRPO, answer and steps"),
    "ReasonRAG: warm-up": ("reasonrag/after", None),
    "ReasonRAG: + DPO": ("reasonrag/refined", "ReasonRAG: warm-up"),
    "oracle": ("shared/oracle", None),
}


@dataclass(frozen=True, slots=True)
class Job:
    """A run, and the one that its first stages are taken from."""

    recipe: str
    folder: Path
    changes: tuple[str, ...]
    origin: Path | None = None
    #: Stages that are left out.
    without: tuple[str, ...] = ()


def jobs_of(out: Path, seed: int, changes: Sequence[str], updates: int) -> list[Job]:
    place = out / f"seed-{seed}"
    common = (f"seed={seed}", *changes)
    shared = Job("prorag-smollm2", place / "shared", common, without=("grpo", "trained", "guided"))
    arms = [
        Job(
            "prorag-smollm2",
            place / arm,
            (
                *common,
                f"stages.grpo.mode={mode}",
                f"stages.grpo.questions={updates * AN_UPDATE // times}",
                f"stages.grpo.epochs={times}",
            ),
            shared.folder,
            ("oracle",) if arm == "dual" else ("oracle", "guided"),
        )
        for arm, (mode, times) in ARMS.items()
    ]
    return [shared, *arms, Job("reasonrag-smollm2", place / "reasonrag", common, without=("oracle",))]


def carry_out(jobs: Sequence[Job], at_once: int) -> None:
    """Through the runner of studies: what is shared is computed once, and what fails does not stop the others."""
    from rich.console import Console

    from stepladder.recipe import load_recipe
    from stepladder.studies.job import Job as Run
    from stepladder.studies.runner import carry_out_all

    runs = []
    for job in jobs:
        plain = load_recipe(job.recipe, job.changes).plain()
        plain["stages"] = {name: stage for name, stage in plain["stages"].items() if name not in job.without}
        job.folder.parent.mkdir(parents=True, exist_ok=True)
        runs.append(Run(plain, job.folder, job.origin))
    carry_out_all(runs, at_once, Console(stderr=True))


def scores(folder: Path) -> dict[str, Any] | None:
    from stepladder.evaluate.runner import load_scores

    place = folder / "evaluation"
    return {row.question_id: row for row in load_scores(place)} if (place / "summary.json").exists() else None


def tell(out: Path, seeds: Sequence[int]) -> None:
    from stepladder.evaluate.stats import mean_interval, paired_difference

    found: dict[str, list[dict[str, Any]]] = {}
    for label, (place, _) in ROWS.items():
        each = [scores(out / f"seed-{seed}" / place) for seed in seeds]
        if known := [some for some in each if some is not None]:
            found[label] = known
    if not found:
        sys.exit(f"{out} has no evaluations yet")
    table: dict[str, Any] = {}
    heads = "".join(f"{name + ' F1 / EM':>34}" for name in (*SETS, "all"))
    print(f"{'':36}{'seeds':>6}{heads}  less the row it builds on")
    for label, runs in found.items():
        row: dict[str, Any] = {"seeds": len(runs)}
        line = f"{label:36}{len(runs):>6}"
        for name in (*SETS, "all"):
            ids = [key for key in runs[0] if name == "all" or key.startswith(f"{name}/")]
            if not ids:
                continue
            f1 = mean_interval([fmean(run[key].f1 for run in runs) for key in ids])
            em = fmean(run[key].em for run in runs for key in ids)
            row[name] = {"questions": len(ids), "f1": [f1.mean, f1.low, f1.high], "em": em}
            row[name]["f1_by_seed"] = [fmean(run[key].f1 for key in ids) for run in runs]
            line += f"{f'{f1.mean:.3f} [{f1.low:.3f}, {f1.high:.3f}] / {em:.3f}':>34}"
        before = found.get(ROWS[label][1] or "")
        if before and len(before) == len(runs):
            ids = list(runs[0])
            ours, theirs = ([fmean(run[key].f1 for run in some) for key in ids] for some in (runs, before))
            change = paired_difference(ours, theirs).difference
            row["change"] = [change.mean, change.low, change.high]
            line += f"  {change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}]"
        table[label] = row
        print(line)
    (out / "table.json").write_text(json.dumps(table, indent=2) + "\n")


def hybrid_index(out: Path) -> Path:
    """An index of all passages with BM25 and embeddings, built once."""
    folder = out / "hybrid-index"
    if not folder.exists():
        command = [sys.executable, "-m", "stepladder", "index", "build", "+".join(SETS), "--kind", "bm25+flat"]
        subprocess.run([*command, "--device", "auto", "--out", str(folder)], check=True, env=dict(os.environ))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", default="smollm2-135m")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--updates", type=int, default=24, help="of the reinforcement learning, a multiple of 4")
    parser.add_argument("--search", choices=("bm25", "hybrid"), default="bm25")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--report", action="store_true", help="only tell what is there")
    chosen = parser.parse_args()
    out = chosen.out.absolute()
    seeds = range(chosen.seeds)
    if not chosen.report:
        out.mkdir(parents=True, exist_ok=True)
        changes = [f"policy={chosen.policy}", *chosen.changes]
        if chosen.search == "hybrid":
            changes.append(f"data.index={hybrid_index(out)}")
        carry_out([job for seed in seeds for job in jobs_of(out, seed, changes, chosen.updates)], chosen.jobs)
    tell(out, seeds)


if __name__ == "__main__":
    main()
