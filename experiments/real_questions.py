"""Real questions, a pretrained model: what each stage brings on HotpotQA, 2WikiMultiHopQA and MuSiQue.

    python experiments/real_questions.py --out runs/real --policy smollm2-135m --seeds 2 --jobs 6 --evals 2
    python experiments/real_questions.py --out runs/real --report

For every seed the recipe prorag-smollm2 is carried out up to its refinement, with BM25. From there three arms go on
with reinforcement learning: by the answer alone, by the answer and graded steps, and by the answer alone with four
times the questions; all play equally many episodes. A fourth arm goes on from the warm-up, by DPO on pairs from the
same trees that differ in ReasonRAG's reward. Every policy is then played on the same questions over BM25, and over a
hybrid index of BM25 and embeddings (`--search`).

Every run is a folder and every evaluation is kept: the same command goes on where it was stopped (`--part` does some of
it: what the arms share, all trainings, or the evaluations of what is there). The table is printed,
and written as `table.json` beside the runs: F1 and EM by data set with intervals over questions, of all seeds together,
and each stage less the one that it builds on.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from commands import Command, carry_out

from stepladder.errors import StepladderError

SETS = ("hotpotqa", "2wikimultihopqa", "musique")
RECIPE = "prorag-smollm2"
#: The stages that the arms of a seed begin with. What is evaluated is evaluated apart.
SHARED = ("sft", "explore", "pairs", "prm", "examined", "rft")
#: The arms of the reinforcement learning: what is learnt from, and how often each question is played.
ARMS = {"outcome": ("outcome", 4), "dual": ("dual", 4), "outcome-4x": ("outcome", 1)}
#: The arm that learns by DPO from the trees of the warmed-up policy: what it has behind the shared stages.
DPO: dict[str, Any] = {
    "preferences": {"kind": "pairs", "judge": "spre"},
    "dpo": {
        "policy": "sft",
        "beta": 0.3,
        "lr": 5e-5,
        "accumulate": 8,
        "batch": 16,
        "lora": {"rank": 16, "alpha": 32},
        "dev_questions": 120,
    },
}
GUIDE = ("--n", "8", "--temperature", "0.5", "--weighted")
#: Guided episodes cost eight times as much: they are played of the first so many questions, and compared on these.
GUIDED = 400


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: a policy, the row that it is compared with, and whether the reward model guides it."""

    policy: str
    before: str | None = None
    guided: bool = False


ROWS = {
    "warm-up": Row("shared/sft"),
    "+ reward model choosing of 8": Row("shared/sft", "warm-up", guided=True),
    "+ DPO": Row("dpo/dpo", "warm-up"),
    "+ RFT": Row("shared/rft", "warm-up"),
    "+ RFT + GRPO, answer alone": Row("outcome/grpo", "+ RFT"),
    "+ RFT + GRPO, answer alone, 4x questions": Row("outcome-4x/grpo", "+ RFT"),
    "+ RFT + GRPO, answer and steps": Row("dual/grpo", "+ RFT"),
    "+ RFT + GRPO, answer and steps + choosing of 8": Row("dual/grpo", "+ RFT + GRPO, answer and steps", guided=True),
    "oracle": Row("gold"),
}
#: What is told beside: one row less another.
ASKED = (
    ("+ RFT + GRPO, answer and steps", "+ RFT + GRPO, answer alone"),
    ("+ RFT + GRPO, answer and steps", "+ RFT + GRPO, answer alone, 4x questions"),
    ("+ RFT + GRPO, answer and steps", "warm-up"),
)


# --- What there is to do ------------------------------------------------------------------------------------


def train(
    out: Path, seeds: Sequence[int], changes: Sequence[str], updates: int, at_once: int, only_shared: bool
) -> None:
    """Through the runner of studies: what is shared is computed once, and what fails does not stop the others."""
    from rich.console import Console

    from stepladder.recipe import load_recipe
    from stepladder.studies.job import Job
    from stepladder.studies.runner import carry_out_all

    def job(seed: int, name: str, stages: Sequence[str], more: dict[str, Any], *own: str) -> Job:
        plain = load_recipe(RECIPE, [f"seed={seed}", *changes, *own]).plain()
        plain["stages"] = {each: plain["stages"][each] for each in stages} | more
        place = out / f"seed-{seed}"
        place.mkdir(parents=True, exist_ok=True)
        return Job(plain, place / name, None if name == "shared" else place / "shared")

    grpo = load_recipe(RECIPE, changes).plain()["stages"]["grpo"]
    an_update = grpo["batch"] // grpo["samples"]
    jobs = [job(seed, "shared", SHARED, {}) for seed in seeds]
    for seed in () if only_shared else seeds:
        for arm, (mode, times) in ARMS.items():
            own = (f"mode={mode}", f"questions={updates * an_update // times}", f"epochs={times}")
            jobs.append(job(seed, arm, (*SHARED, "grpo"), {}, *(f"stages.grpo.{each}" for each in own)))
        jobs.append(job(seed, "dpo", SHARED, DPO))
    carry_out_all(jobs, at_once, Console(stderr=True))


def hybrid_index(out: Path) -> Path:
    """An index of all passages with BM25 and embeddings, built once."""
    folder = out / "hybrid-index"
    if not folder.exists():
        command = [sys.executable, "-m", "stepladder", "index", "build", "+".join(SETS), "--kind", "bm25+flat"]
        subprocess.run([*command, "--device", "auto", "--out", str(folder)], check=True)
    return folder


def evaluation(out: Path, seed: int, search: str, label: str, limit: int | None) -> Path:
    name = "-".join(re.findall(r"\w+", label.lower()))
    return out / f"seed-{seed}" / "evaluations" / (search if limit is None else f"{search}-{limit}") / name


def evaluations(out: Path, seeds: Sequence[int], search: str, index: Path | None, limit: int | None) -> list[Command]:
    def command(seed: int, label: str, row: Row) -> Command:
        place, folder = out / f"seed-{seed}", evaluation(out, seed, search, label, limit)
        reward, needs = place / "shared" / "prm", [place / "shared" / "sft"]
        arguments = ["eval", "--run", str(place / "shared"), "--split", "test"]
        if row.policy == "gold":
            arguments += ["--engine", "gold"]
        else:
            arguments += ["--model", str(place / row.policy / "policy")]
            needs.append(place / row.policy)
        if index is not None:
            arguments += ["--index", str(index)]
        if row.guided:
            arguments += ["--guide", str(reward / "reward"), *GUIDE]
            needs.append(reward)
        most = min(limit or GUIDED, GUIDED) if row.guided else limit
        if most is not None:
            arguments += ["--limit", str(most)]
        found = (*arguments, "--json", "--out", str(folder))
        done = tuple(stage / "stage.json" for stage in dict.fromkeys(needs))
        return Command(f"{search}-{folder.name}-{seed}", found, folder / "summary.json", done)

    return [command(seed, label, row) for label, row in ROWS.items() for seed in seeds]


# --- What came of it ----------------------------------------------------------------------------------------


def tell(out: Path, seeds: Sequence[int], search: str, limit: int | None) -> dict[str, Any]:
    from stepladder.evaluate.runner import load_scores
    from stepladder.evaluate.stats import mean_interval, paired_difference

    found: dict[str, dict[int, dict[str, Any]]] = {}
    for label in ROWS:
        folders = {seed: evaluation(out, seed, search, label, limit) for seed in seeds}
        known = {seed: folder for seed, folder in folders.items() if (folder / "summary.json").exists()}
        if known:
            found[label] = {
                seed: {row.question_id: row for row in load_scores(folder)} for seed, folder in known.items()
            }

    def less(ours: str, theirs: str) -> list[float] | None:
        """Of the seeds and the questions that both have."""
        both = [seed for seed in found.get(ours, ()) if seed in found.get(theirs, ())]
        if not both:
            return None
        ids = [key for key in found[ours][both[0]] if key in found[theirs][both[0]]]
        each = ([fmean(found[label][seed][key].f1 for seed in both) for key in ids] for label in (ours, theirs))
        change = paired_difference(*each).difference
        return [change.mean, change.low, change.high]

    def told(change: list[float]) -> str:
        return f"{change[0]:+.3f} [{change[1]:+.3f}, {change[2]:+.3f}]"

    table: dict[str, Any] = {}
    heads = "".join(f"{name + ' F1 / EM':>30}" for name in (*SETS, "all"))
    print(f"\n{search:48}{'seeds':>6}{heads}  less the row it builds on")
    for label, by_seed in found.items():
        runs = list(by_seed.values())
        row: dict[str, Any] = {"seeds": len(runs)}
        line = f"{label:48}{len(runs):>6}"
        for name in (*SETS, "all"):
            ids = [key for key in runs[0] if name == "all" or key.startswith(f"{name}/")]
            if not ids:
                continue
            f1 = mean_interval([fmean(run[key].f1 for run in runs) for key in ids])
            em = fmean(run[key].em for run in runs for key in ids)
            each = [fmean(run[key].f1 for key in ids) for run in runs]
            row[name] = {"questions": len(ids), "f1": [f1.mean, f1.low, f1.high], "em": em, "f1_by_seed": each}
            line += f"{f'{f1.mean:.3f} [{f1.low:.3f}, {f1.high:.3f}] / {em:.3f}':>30}"
        for value in ("tokens_read", "tokens_written", "searches"):
            row[value] = fmean(getattr(each, value) for run in runs for each in run.values())
        if change := less(label, ROWS[label].before or ""):
            row["change"] = change
            line += f"  {told(change)}"
        table[label] = row
        print(line)
    for ours, theirs in ASKED:
        if change := less(ours, theirs):
            table[ours].setdefault("less", {})[theirs] = change
            print(f"{ours} less {theirs}: {told(change)}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", default="smollm2-135m")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--evals", type=int, default=1, help="evaluations at a time, beside the trainings")
    parser.add_argument("--updates", type=int, default=40, help="of the reinforcement learning, a multiple of 4")
    parser.add_argument("--search", default="bm25,hybrid", help="what policies are evaluated over")
    parser.add_argument("--limit", type=int, help="test questions; all by default")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--part", choices=("all", "shared", "train", "evaluate"), default="all", help="do only this")
    parser.add_argument("--report", action="store_true", help="only tell what is there")
    chosen = parser.parse_args()
    out = chosen.out.absolute()
    seeds = range(chosen.seeds)
    searches = [name.strip() for name in chosen.search.split(",")]
    if unknown := [name for name in searches if name not in ("bm25", "hybrid")]:
        parser.error(f"--search: unknown {', '.join(unknown)}; bm25 and hybrid are known")
    failed: list[str] = []
    if not chosen.report:
        out.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("STEPLADDER_GPU_SHARE", f"{1 / (chosen.jobs + chosen.evals):.4f}")
        changes = [f"policy={chosen.policy}", *chosen.changes]
        told = (out, seeds, changes, chosen.updates, chosen.jobs, chosen.part == "shared")

        def trained() -> None:
            try:
                train(*told)
            except StepladderError as error:  # what came to its end is evaluated all the same
                failed.append(str(error))

        training = threading.Thread(target=trained)
        if chosen.part != "evaluate":
            training.start()
        if chosen.part in ("all", "evaluate"):
            commands = []
            for search in searches:
                index = hybrid_index(out) if search == "hybrid" else None
                commands += evaluations(out, seeds, search, index, chosen.limit)
            carry_out(commands, chosen.evals, out / "logs", more_may_come=training.is_alive)
        if chosen.part != "evaluate":
            training.join()
    tables = {search: tell(out, seeds, search, chosen.limit) for search in searches}
    (out / "table.json").write_text(json.dumps(tables, indent=2) + "\n")
    if failed:
        sys.exit(failed[0])


if __name__ == "__main__":
    main()
