"""Real questions, a pretrained model: what each stage brings on HotpotQA, 2WikiMultiHopQA and MuSiQue.

    python experiments/real_questions.py --out runs/real --seeds 2 --repeats 1 --part shared --jobs 2
    python experiments/real_questions.py --out runs/real --seeds 2 --repeats 1 --part train --jobs 8
    python experiments/real_questions.py --out runs/real --seeds 2 --repeats 1 --part evaluate --evals 8
    python experiments/real_questions.py --out runs/real --seeds 2 --repeats 1 --report

For every seed the recipe prorag-smollm2 is carried out up to its refinement, with BM25. From there three arms go on
with reinforcement learning: by the answer alone, by the answer and graded steps, and by the answer alone with four
times the questions; all play equally many episodes. `--repeats` has each of them go on from there several times, with
other questions and other samples. A fourth arm goes on from the warm-up, by DPO on pairs from the same trees that
differ in ReasonRAG's reward. Every policy is then played on the same questions over BM25, and over a hybrid index of
BM25 and embeddings, which needs `pip install 'stepladder[dense]'` (`--search bm25` goes without). Two of them are also
guided, by the reward model that chooses among eight samples of every step, and the warmed-up one by the gold judge,
which shows what there is to choose.

Every run is a folder and every evaluation is kept: the same command goes on where it was stopped. `--part` does some
of it: what the arms share, all trainings, or the evaluations of what is there; each part has the GPU to itself, which
what is shared needs more of than the arms. Without it all is done at a time, with `--jobs` + `--evals` shares of the
GPU. A guided evaluation that was sampled otherwise than is asked for now is set aside and made again; `--report` tells
it as it is. The table is printed, and written as `table.json` beside the runs: F1 and EM by data set with intervals
over questions, of all runs together, and each stage less the one that it builds on.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from rich.console import Console

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.errors import StepladderError
from stepladder.core.trace import StopReason
from stepladder.evaluation.evaluator import load_scores
from stepladder.evaluation.statistics import mean_interval, paired_difference
from stepladder.pipeline.recipe import load_recipe
from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.reporting.studies.study_runner import run_jobs

SETS = ("hotpotqa", "2wikimultihopqa", "musique")
RECIPE = "prorag-smollm2"
#: The stages that the arms of a seed begin with. What is evaluated is evaluated apart.
SHARED = ("sft", "explore", "pairs", "prm", "eval-prm", "rft")
#: The arms of the reinforcement learning: what is learnt from, and in how many rounds each question is played.
ARMS = {"outcome": ("outcome", 4), "dual": ("dual", 4), "outcome-4x": ("outcome", 1)}
#: The arm that learns by DPO from the trees of the warmed-up policy: what it has behind the shared stages.
DPO: dict[str, Any] = {
    "preferences": {"kind": "pairs", "judge": "spre"},
    "dpo": {
        "policy": "sft",
        "beta": 0.3,
        "learning_rate": 3e-4,
        "num_train_epochs": 2,
        "gradient_accumulation_steps": 8,
        "batch_size": 16,
        "lora": {"r": 16, "lora_alpha": 32},
        "dev_questions": 200,
        "eval_on_start": True,
    },
}
#: As hot as what the reward model has learnt from.
GUIDE = {"n": 8, "temperature": 0.8, "weighted": True}
_GUIDE_OPTIONS = ("--n", str(GUIDE["n"]), "--temperature", str(GUIDE["temperature"]), "--weighted")
#: Guided episodes cost eight times as much: they are played of the first so many questions, and compared on these.
GUIDED = 200


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: an arm and its stage, the row that it is compared with, and who guides it."""

    arm: str
    stage: str
    before: str | None = None
    #: Who chooses among samples of every step: the reward model, or the gold judge, who knows what is to be found.
    guide: Literal["reward", "gold"] | None = None

    def runs(self, seeds: Sequence[int], repeats: int) -> "list[Run]":
        """What there is of it: of what arms share there are no repeats."""
        return [Run(seed, repeat) for seed in seeds for repeat in range(repeats if self.arm in ARMS else 1)]


@dataclass(frozen=True, slots=True)
class Run:
    """One of the runs behind a row."""

    seed: int
    repeat: int = 0

    def again(self, name: str) -> str:
        """The name of a folder, or of a stage, which is seeded by its name."""
        return f"{name}-{self.repeat + 1}" if self.repeat else name


_DUAL = "+ RFT + GRPO, answer and steps"
ROWS = {
    "warm-up": Row("shared", "sft"),
    "+ reward model choosing of 8": Row("shared", "sft", "warm-up", guide="reward"),
    "+ gold judge choosing of 8": Row("shared", "sft", "warm-up", guide="gold"),
    "+ DPO": Row("dpo", "dpo", "warm-up"),
    "+ RFT": Row("shared", "rft", "warm-up"),
    "+ RFT + GRPO, answer alone": Row("outcome", "grpo", "+ RFT"),
    "+ RFT + GRPO, answer alone, 4x questions": Row("outcome-4x", "grpo", "+ RFT"),
    _DUAL: Row("dual", "grpo", "+ RFT"),
    f"{_DUAL} + choosing of 8": Row("dual", "grpo", _DUAL, guide="reward"),
    "oracle": Row("shared", "gold"),
}
#: What is told beside: one row less another.
ASKED = (
    (_DUAL, "+ RFT + GRPO, answer alone"),
    (_DUAL, "+ RFT + GRPO, answer alone, 4x questions"),
    (_DUAL, "warm-up"),
)


# --- What there is to do ------------------------------------------------------------------------------------


def trainings(out: Path, seeds: Sequence[int], repeats: int, changes: Sequence[str], updates: int) -> list[Job]:
    """What is shared, then the arms, which begin with it."""

    def job(seed: int, name: str, more: dict[str, Any]) -> Job:
        plain = load_recipe(RECIPE, [f"seed={seed}", *changes]).plain()
        plain["stages"] = {each: plain["stages"][each] for each in SHARED} | more
        place = out / f"seed-{seed}"
        return Job(plain, place / name, None if name == "shared" else place / "shared")

    grpo = load_recipe(RECIPE, changes).plain()["stages"]["grpo"]
    an_update = grpo["batch_size"] // grpo["num_generations"]
    jobs = [job(seed, "shared", {}) for seed in seeds]
    for arm, (mode, times) in ARMS.items():
        # An alarm is told, and ends nothing: all arms are to play equally many episodes.
        own = {"mode": mode, "questions": updates * an_update // times}
        own |= {"num_train_epochs": times, "monitors.stop": "false"}
        changed = load_recipe(RECIPE, [*changes, *(f"stages.grpo.{name}={value}" for name, value in own.items())])
        learning = changed.plain()["stages"]["grpo"]
        for run in ROWS[_DUAL].runs(seeds, repeats):
            jobs.append(job(run.seed, run.again(arm), {run.again("grpo"): learning}))
    return [*jobs, *(job(seed, "dpo", DPO) for seed in seeds)]


def hybrid_index(out: Path) -> Path:
    """An index of all passages with BM25 and embeddings, built once; the end where that fails."""
    folder = out / "hybrid-index"
    if not folder.exists():
        command = [sys.executable, "-m", "stepladder", "index", "build", "+".join(SETS), "--kind", "bm25+flat"]
        if subprocess.run([*command, "--device", "auto", "--out", str(folder)], check=False).returncode:
            sys.exit(
                "the hybrid index was not built, so nothing was begun: it needs `pip install 'stepladder[dense]'` and "
                f"the sets {', '.join(SETS)} (docs/data.md); --search bm25 goes without"
            )
    return folder


def evaluation(out: Path, run: Run, search: str, label: str, limit: int | None) -> Path:
    name = run.again("-".join(re.findall(r"\w+", label.lower())))
    return out / f"seed-{run.seed}" / "evaluations" / (search if limit is None else f"{search}-{limit}") / name


def guide_of(folder: Path) -> dict[str, Any]:
    """How a guided evaluation was sampled, as far as `GUIDE` says."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {name: (summary.get("guide") or {}).get(name) for name in GUIDE}


def set_aside(folder: Path) -> None:
    """Make room where a guided evaluation is not the one that is asked for: a row has one way of sampling."""
    if not (folder / "summary.json").exists() or (found := guide_of(folder)) == GUIDE:
        return
    aside = folder.with_name("-".join([folder.name, *(f"{name}-{value}" for name, value in found.items())]))
    if aside.exists():  # sampled in the same way, and earlier
        shutil.rmtree(aside)
    folder.rename(aside)
    print(f"{folder} was sampled otherwise, and is now {aside.name}: evaluated again")


def training_seconds(out: Path, run: Run, row: Row) -> float | None:
    """What the row's own stage took, not those before it; None where it has none, or its folder is gone."""
    record = out / f"seed-{run.seed}" / run.again(row.arm) / run.again(row.stage) / "stage.json"
    return json.loads(record.read_text(encoding="utf-8"))["seconds"] if record.is_file() else None


def evaluations(
    out: Path, seeds: Sequence[int], repeats: int, search: str, index: Path | None, limit: int | None
) -> list[Job]:
    def command(run: Run, label: str, row: Row) -> Job:
        place, folder = out / f"seed-{run.seed}", evaluation(out, run, search, label, limit)
        reward, needs = place / "shared" / "prm", [place / "shared" / "sft"]
        arguments = ["eval", "--run", str(place / "shared"), "--split", "test"]
        if row.stage == "gold":
            arguments += ["--engine", "oracle"]
        else:
            stage = place / run.again(row.arm) / run.again(row.stage)
            arguments += ["--model", str(stage / "policy")]
            needs.append(stage)
        if index is not None:
            arguments += ["--index", str(index)]
        if row.guide is not None:
            arguments += ["--guide", "gold" if row.guide == "gold" else str(reward / "reward"), *_GUIDE_OPTIONS]
        if row.guide == "reward":
            needs.append(reward)
        most = min(limit or GUIDED, GUIDED) if row.guide is not None else limit
        if most is not None:
            arguments += ["--limit", str(most)]
        found = (*arguments, "--json", "--out", str(folder))
        done = tuple(stage / "stage.json" for stage in dict.fromkeys(needs))
        title = f"{search}-{folder.name}-seed-{run.seed}"
        made = folder / "summary.json"
        return Job({}, folder, arguments=found, needs=done, done=made, group="evaluations", title=title)

    return [command(run, label, row) for label, row in ROWS.items() for run in row.runs(seeds, repeats)]


# --- What came of it ----------------------------------------------------------------------------------------


def what_is_found(played: Sequence[QuestionScore]) -> dict[str, float | None]:
    """Of the gold passages, and F1 of the questions all of whose were found; None where nothing is known of it."""
    known = [(each.gold_recall, each.f1) for each in played if each.gold_recall is not None]
    f1_there = [f1 for recall, f1 in known if recall == 1]
    return {
        "gold_recall": fmean(recall for recall, _ in known) if known else None,
        "found_all": len(f1_there) / len(known) if known else None,
        "f1_where_found": fmean(f1_there) if f1_there else None,
    }


def tell(out: Path, seeds: Sequence[int], repeats: int, search: str, limit: int | None) -> dict[str, Any]:
    found: dict[str, dict[Run, dict[str, Any]]] = {}
    for label, listed in ROWS.items():
        folders = {run: evaluation(out, run, search, label, limit) for run in listed.runs(seeds, repeats)}
        known = {run: folder for run, folder in folders.items() if (folder / "summary.json").exists()}
        if known:
            found[label] = {
                run: {each.question_id: each for each in load_scores(folder)} for run, folder in known.items()
            }

    if not found:
        print(f"\n{search}: nothing is evaluated yet")
        return {}

    def less(ours: str, theirs: str) -> tuple[list[float], list[float]] | None:
        """The mean with its interval over questions, and that of every run, of the runs and the questions that both
        have; repeats of one are compared with the other's single run."""
        pairs = []
        for run, scores in found.get(ours, {}).items():
            other = found.get(theirs, {})
            if (beside := other.get(run) or other.get(Run(run.seed))) is not None:
                pairs.append((scores, beside))
        if not pairs:
            return None
        ids = [key for key in pairs[0][0] if key in pairs[0][1]]
        each = ([fmean(pair[side][key].f1 for pair in pairs) for key in ids] for side in (0, 1))
        change = paired_difference(*each).difference
        by_run = [fmean(mine[key].f1 - other[key].f1 for key in ids) for mine, other in pairs]
        return [change.mean, change.low, change.high], by_run

    def told(change: list[float], by_run: list[float]) -> str:
        runs = ", ".join(f"{each:+.3f}" for each in by_run)
        return f"{change[0]:+.3f} [{change[1]:+.3f}, {change[2]:+.3f}], by run {runs}"

    table: dict[str, Any] = {}
    heads = "".join(f"{name + ' F1 / EM':>30}" for name in (*SETS, "all"))
    print(f"\n{search:48}{'runs':>6}{heads}  less the row it builds on")
    for label, by_run in found.items():
        runs = list(by_run.values())
        row: dict[str, Any] = {"runs": len(runs)}
        line = f"{label:48}{len(runs):>6}"
        for name in (*SETS, "all"):
            ids = [key for key in runs[0] if name == "all" or key.startswith(f"{name}/")]
            if not ids:
                continue
            f1 = mean_interval([fmean(run[key].f1 for run in runs) for key in ids])
            em = mean_interval([fmean(run[key].em for run in runs) for key in ids])
            each = [fmean(run[key].f1 for key in ids) for run in runs]
            row[name] = {
                "questions": len(ids),
                "f1": [f1.mean, f1.low, f1.high],
                "em": [em.mean, em.low, em.high],
                "f1_by_run": each,
            }
            line += f"{f'{f1.mean:.3f} [{f1.low:.3f}, {f1.high:.3f}] / {em.mean:.3f}':>30}"
        played = [each for run in runs for each in run.values()]
        for value in ("tokens_read", "tokens_written", "searches"):
            row[value] = fmean(getattr(each, value) for each in played)
        row["answered"] = fmean(each.stop is StopReason.ANSWERED for each in played)
        row |= what_is_found(played)
        if ROWS[label].guide is None:
            row["training_seconds"] = [training_seconds(out, run, ROWS[label]) for run in by_run]
        else:
            row["guide"] = [guide_of(evaluation(out, run, search, label, limit)) for run in by_run]
        if change := less(label, ROWS[label].before or ""):
            row["change"], row["change_by_run"] = change
            line += f"  {told(*change)}"
        table[label] = row
        print(line)
    for label, row in table.items():
        for run, guide in zip(found[label], row.get("guide", ()), strict=False):
            if guide != GUIDE:
                sampled = ", ".join(f"{name} {value}" for name, value in guide.items())
                print(f"{label}, {run.again(f'seed-{run.seed}')}: sampled with {sampled}")
    for ours, theirs in ASKED:
        if change := less(ours, theirs):
            table[ours].setdefault("less", {})[theirs] = {"change": change[0], "by_run": change[1]}
            print(f"{ours} less {theirs}: {told(*change)}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", default="smollm2-135m")
    parser.add_argument("--seeds", type=int, default=1, help="from the warm-up on")
    parser.add_argument("--repeats", type=int, default=2, help="of the reinforcement learning, for every seed")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--evals", type=int, default=1, help="evaluations at a time, beside the trainings")
    parser.add_argument("--updates", type=int, default=60, help="of the reinforcement learning, a multiple of 4")
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
    if chosen.updates < 4 or chosen.updates % 4:
        parser.error(f"--updates: expected a multiple of 4, for arms of four epochs, got {chosen.updates}")
    failed: list[str] = []
    if not chosen.report:
        out.mkdir(parents=True, exist_ok=True)
        trains, evaluates = chosen.part != "evaluate", chosen.part in ("all", "evaluate")
        # Before anything is begun: what cannot be built is better known now.
        index = hybrid_index(out) if evaluates and "hybrid" in searches else None
        changes = [f"policy={chosen.policy}", *chosen.changes]
        jobs = trainings(out, seeds, chosen.repeats, changes, chosen.updates) if trains else []
        if chosen.part == "shared":
            jobs = [job for job in jobs if job.origin is None]
        for search in searches if evaluates else ():
            over = index if search == "hybrid" else None
            jobs += evaluations(out, seeds, chosen.repeats, search, over, chosen.limit)
        jobs.sort(key=lambda job: "--guide" in job.arguments)  # what costs most comes last
        for job in jobs:
            if "--guide" in job.arguments:
                set_aside(job.folder)
        try:
            run_jobs(jobs, {"runs": chosen.jobs, "evaluations": chosen.evals}, Console(stderr=True))
        except StepladderError as error:  # what came to its end is told all the same
            failed.append(str(error))
    tables = {search: tell(out, seeds, chosen.repeats, search, chosen.limit) for search in searches}
    if chosen.report and not any(tables.values()):
        sys.exit(f"{out} has no evaluations of these seeds; without --report they are made")
    (out / "table.json").write_text(json.dumps(tables, indent=2) + "\n")
    if failed:
        sys.exit(failed[0])


if __name__ == "__main__":
    main()
