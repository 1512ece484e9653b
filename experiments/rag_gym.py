"""Agents, recipes and guides on equal terms: the tables and the picture of docs/results-agents.md.

    python experiments/rag_gym.py --out runs/rag-gym --seeds 3 --jobs 12
    python experiments/rag_gym.py --out runs/rag-gym --larger path/to/SmolLM2-135M   # one more policy of another size

1. agents: nine of them, warmed up on the same questions (recipe warmup-nano)
2. recipes: prorag, reasonrag, rag-gym, search-r1, tree
3. guided: the warmed-up policy of every prorag run, guided by that run's reward model: n = 1 to 16, other strategies
4. transfer: the reward model of the first seed with policies that it has never seen

Every run is a folder and every evaluation is kept: the same command goes on where it was stopped. `--only` names parts.
The tables of 1 and 2 are printed by `stepladder compare`, those of 3 and 4 here; `guided.json`, `guided.svg` and
`transfer.json` are written beside the runs. All parts are evaluated on test questions of Atlas. The temperature of
guided samples was chosen on dev questions (`--tune`).
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.reporting.studies.jobs.study_job import Job
from stepladder.reporting.studies.study_runner import run_jobs

AGENTS = (
    "direct",
    "cot",
    "rag",
    "react-brief",
    "search-o1-brief",
    "research-brief",
    "search-r1-brief",
    "prorag-brief",
    "reasonrag-brief",
)
RECIPES = ("prorag", "reasonrag", "rag-gym", "search-r1", "tree")
SIZES = (1, 2, 4, 8, 16)
QUESTIONS = 300
#: Beside best-of-n actions: label, arguments of `stepladder eval` behind --guide.
STRATEGIES = {
    "greedy, no guide": None,
    "best of 8 episodes, min": ("PRM", "--strategy", "trajectories", "--n", "8"),
    "best of 8 episodes, mean": ("PRM", "--strategy", "trajectories", "--n", "8", "--aggregate", "mean"),
    "best of 8 episodes, last": ("PRM", "--strategy", "trajectories", "--n", "8", "--aggregate", "last"),
    "beam of 2, 4 actions each": ("PRM", "--strategy", "beam", "--n", "4", "--aggregate", "mean"),
    "MCTS, 4 actions, 32 simulations": ("PRM", "--strategy", "mcts", "--n", "4"),
    "gold judge, 8 actions": ("gold", "--n", "8"),
}
VOTES = (2, 4, 8, 16)
#: Of guided samples, the best of 0.3, 0.5 and 0.7 on dev questions. RAG-Gym's 1.0 is too much for a model this small.
TEMPERATURE = 0.5
TRIED = (0.3, 0.5, 0.7, 1.0)


def run_job(recipe: str, folder: Path, *changes: str) -> Job:
    settings = tuple(part for change in changes for part in ("--set", change))
    return Job({}, folder, arguments=("run", recipe, *settings, "--out", str(folder)), done=folder / "DONE")


def eval_job(
    out: Path,
    run: Path,
    policy: Path,
    guide: Sequence[str] | None,
    reward: Path,
    *,
    temperature: float = TEMPERATURE,
    asked: Sequence[str] = ("--limit", str(QUESTIONS)),
) -> Job:
    by = () if guide is None else tuple(str(reward) if each == "PRM" else each for each in guide)
    chosen = ("--guide", *by, "--temperature", str(temperature)) if by else ()
    arguments = ("eval", "--run", str(run), "--model", str(policy), *asked, *chosen)
    needs = (policy.parent / "stage.json", reward.parent / "stage.json")
    made = (*arguments, "--json", "--out", str(out))
    return Job({}, out, arguments=made, needs=needs, done=out / "summary.json")


def carry_out(jobs: Iterable[Job], at_once: int) -> None:
    """Run each job once. What fails is told, and its tables are printed without it."""
    try:
        run_jobs({job.folder: job for job in jobs}.values(), at_once, Console(stderr=True))
    except StepladderError as error:
        print(error, file=sys.stderr)


# --- What there is to do ------------------------------------------------------------------------------------


class Plan:
    """The jobs of every part, for so many seeds."""

    def __init__(self, out: Path, seeds: int, larger: Path | None) -> None:
        self.out, self.seeds, self.larger = out, range(seeds), larger

    def prorag(self, seed: int) -> Path:
        return self.out / f"prorag-{seed}"

    def reward(self, seed: int) -> Path:
        return self.prorag(seed) / "prm" / "reward"

    def base(self) -> list[Job]:
        """The runs whose policies and reward models guided inference takes."""
        return [job for job in self.recipes() if job.folder.name.startswith(("prorag-", "larger-"))]

    def agents(self) -> list[Job]:
        return [
            run_job("warmup-nano", self.out / f"agent-{agent}-{seed}", f"agent={agent}", f"seed={seed}")
            for agent in AGENTS
            for seed in self.seeds
        ]

    def recipes(self) -> list[Job]:
        runs = [
            run_job(f"{recipe}-nano", self.out / f"{recipe}-{seed}", f"seed={seed}")
            for recipe in RECIPES
            for seed in self.seeds
        ]
        if self.larger is None:
            return runs
        changes = (f"policy={self.larger}", "stages.sft.learning_rate=1e-4", "batch_size=64")
        return [*runs, run_job("warmup-nano", self.out / "larger-0", *changes)]

    def warmed_up(self, name: str, seed: int, guide: Sequence[str] | None, **options: Any) -> Job:
        """The evaluation of a run's warmed-up policy, guided by that run's reward model."""
        run = self.prorag(seed)
        return eval_job(self.out / f"{name}-{seed}", run, run / "sft" / "policy", guide, self.reward(seed), **options)

    def tuning(self) -> list[Job]:
        """The temperatures on dev questions."""
        ways = {"greedy": None, **{str(each): ("PRM", "--n", "8") for each in TRIED}}
        dev = ("--split", "dev", "--limit", "150")
        return [
            self.warmed_up(f"dev-{way}", seed, guide, temperature=float(way) if guide else 0.0, asked=dev)
            for seed in self.seeds
            for way, guide in ways.items()
        ]

    def guided(self) -> list[Job]:
        ways: dict[str, Sequence[str] | None] = {
            **{f"actions-{n}": ("PRM", "--n", str(n)) for n in SIZES},
            **{f"weighted-{n}": ("PRM", "--weighted", "--n", str(n)) for n in SIZES[1:]},
            **{f"vote-{n}": ("vote", "--n", str(n)) for n in VOTES},
            **{slug(label): guide for label, guide in STRATEGIES.items()},
        }
        return [self.warmed_up(f"guided-{name}", seed, guide) for name, guide in ways.items() for seed in self.seeds]

    def policies(self) -> dict[str, tuple[Path, Path]]:
        """Those that the first seed's reward model is tried on: run and model folder, by what they are."""
        first = self.prorag(0)
        found = {
            "its own policy, warmed up": (first, first / "sft" / "policy"),
            "the same, refined": (first, first / "rft" / "policy"),
            "the same, trained": (first, first / "grpo" / "policy"),
        }
        for seed in self.seeds[1:]:
            other = self.prorag(seed)
            found[f"another policy, warmed up (seed {seed})"] = (other, other / "sft" / "policy")
            found[f"another policy, trained (seed {seed})"] = (other, other / "grpo" / "policy")
        if self.larger is not None:
            found["SmolLM2-135M, warmed up"] = (self.out / "larger-0", self.out / "larger-0" / "sft" / "policy")
        return found

    def transfer(self) -> dict[str, dict[str, Job]]:
        """By policy: greedy, one sample and eight. What guided inference measures too is the same job, done once."""
        ways: dict[str, Sequence[str] | None] = {
            "greedy": None,
            "1": ("PRM", "--n", "1"),
            "8": ("PRM", "--n", "8"),
        }
        known = {job.arguments[:-1]: job for job in self.guided()}  # the last one says where to
        jobs: dict[str, dict[str, Job]] = {}
        for label, (run, policy) in self.policies().items():
            jobs[label] = {}
            for way, guide in ways.items():
                job = eval_job(self.out / f"transfer-{slug(label)}-{way}", run, policy, guide, self.reward(0))
                jobs[label][way] = known.get(job.arguments[:-1], job)
        return jobs


def slug(label: str) -> str:
    return "".join(each if each.isalnum() else "-" for each in label.lower()).strip("-")


# --- What came of it ----------------------------------------------------------------------------------------


def summary_of(folder: Path) -> dict[str, Any] | None:
    path = folder / "summary.json"
    return json.loads(path.read_text()) if path.exists() else None


def tell_agents(plan: Plan) -> None:
    folders = [job.folder for job in (*plan.agents(), *plan.recipes()) if "larger" not in job.folder.name]
    done = [folder for folder in folders if (folder / "DONE").exists()]
    labels = [f"{folder.name.rsplit('-', 1)[0].removeprefix('agent-')}={folder}" for folder in done]
    if labels:
        html = ("--html", str(plan.out / "compare.html"))
        subprocess.run([sys.executable, "-m", "stepladder", "compare", *labels, *html], check=False)


def tell_guided(plan: Plan) -> None:
    from stepladder.evaluation.evaluator import load_scores
    from stepladder.evaluation.statistics import paired_difference
    from stepladder.reporting.charts.figures import Point, bands_svg

    ways = {
        **{f"actions, n = {n}": f"actions-{n}" for n in SIZES},
        **{f"actions weighted, n = {n}": f"weighted-{n}" for n in SIZES[1:]},
        **{f"vote of {n}": f"vote-{n}" for n in VOTES},
        **{label: slug(label) for label in STRATEGIES},
    }
    rows: dict[str, list[dict[str, Any]]] = {}
    for label, name in ways.items():
        folders = [plan.out / f"guided-{name}-{seed}" for seed in plan.seeds]
        found = [{row.question_id: row for row in load_scores(each)} for each in folders if summary_of(each)]
        if found:
            rows[label] = found
    if not rows:
        return
    common = sorted(set.intersection(*(set(each) for found in rows.values() for each in found)))
    first = rows.get("actions, n = 1")
    numbers: dict[str, Any] = {}
    print(f"\n{len(common)} questions that all have; differences are of seeds that both have, paired by question")
    print(f"{'way':34} {'F1 by seed':24} {'mean':>6} {'EM':>6} {'written':>8} {'searches':>8}  less n = 1")
    for label, found in rows.items():

        def mean(value: str, found: list[dict[str, Any]] = found) -> float:
            return fmean(getattr(each[name], value) or 0 for each in found for name in common)

        f1 = [fmean(each[name].f1 for name in common) for each in found]
        gain = ""
        if first is not None and len(found) == len(first) and found is not first:
            ours, theirs = ([fmean(each[name].f1 for each in some) for name in common] for some in (found, first))
            change = paired_difference(ours, theirs)
            difference = change.difference
            gain = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}], p = {change.p_value:.4f}"
        told = {"em": mean("em"), "written": mean("tokens_written"), "searches": mean("searches_made")}
        numbers[label] = {"f1": f1, **told, "less n = 1": gain}
        shown = " ".join(f"{each:.3f}" for each in f1)
        line = f"{label:34} {shown:24} {fmean(f1):6.3f} {told['em']:6.3f}"
        print(f"{line} {told['written']:8.0f} {told['searches']:8.1f}  {gain}")
    result = {"questions": len(common), "temperature": TEMPERATURE, "ways": numbers}
    (plan.out / "guided.json").write_text(json.dumps(result, indent=2) + "\n")

    def points(prefix: str, sizes: Sequence[int]) -> list[Point]:
        known = [(n, numbers[prefix.format(n)]["f1"]) for n in sizes if prefix.format(n) in numbers]
        return [Point(n, fmean(f1), min(f1), max(f1), len(f1)) for n, f1 in known]

    series = {
        "highest score": points("actions, n = {}", SIZES),
        "score x samples": points("actions, n = {}", SIZES[:1]) + points("actions weighted, n = {}", SIZES[1:]),
        "vote on answers": points("vote of {}", VOTES),
    }
    series = {name: some for name, some in series.items() if len(some) > 1}
    if series:
        greedy = numbers.get("greedy, no guide")
        marks = {"greedy": fmean(greedy["f1"])} if greedy else None
        told_below = f"warmed-up policy, {len(common)} test questions; lines: mean of seeds, bands: least and greatest"
        picture = bands_svg(
            "Guided inference", series, across="samples", up="F1", log=True, marks=marks, subtitle=told_below
        )
        (plan.out / "guided.svg").write_text(picture)


def tell_transfer(plan: Plan) -> None:
    from stepladder.evaluation.evaluator import compare, load_scores

    head = f"{'greedy':>7} {'n = 1':>7} {'n = 8':>7}  n = 8 less n = 1"
    print(f"\n{'policy, guided by the reward model of seed 0':44} {head}")
    rows = []
    for label, jobs in plan.transfer().items():
        folders = {way: job.folder for way, job in jobs.items()}
        found = {way: each for way, folder in folders.items() if (each := summary_of(folder))}
        if len(found) < 3:
            continue
        rows_of = {way: list(load_scores(folder)) for way, folder in folders.items()}
        asked = set.intersection(*({row.question_id for row in each} for each in rows_of.values()))
        rows_of = {way: [row for row in each if row.question_id in asked] for way, each in rows_of.items()}
        change = compare(rows_of["8"], rows_of["1"], "f1")
        gain = f"{change.difference.mean:+.3f} [{change.difference.low:+.3f}, {change.difference.high:+.3f}]"
        f1 = {way: fmean(row.f1 for row in each) for way, each in rows_of.items()}
        rows.append({"policy": label, "questions": len(asked), **f1, "gain": gain, "p": change.p_value})
        print(f"{label:44} {f1['greedy']:7.3f} {f1['1']:7.3f} {f1['8']:7.3f}  {gain}")
    (plan.out / "transfer.json").write_text(json.dumps(rows, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="commands at once")
    parser.add_argument("--larger", type=Path, help="a model folder of another size")
    parser.add_argument("--only", default="agents,recipes,guided,transfer")
    parser.add_argument("--tune", action="store_true", help="try temperatures of guided samples on dev questions")
    parser.add_argument("--report", action="store_true", help="only tell what is there")
    chosen = parser.parse_args()
    plan = Plan(chosen.out.absolute(), chosen.seeds, chosen.larger and chosen.larger.absolute())
    plan.out.mkdir(parents=True, exist_ok=True)
    parts = chosen.only.split(",")
    if chosen.tune:
        carry_out(plan.base(), chosen.jobs)
        carry_out(plan.tuning(), chosen.jobs)
        for way in ("greedy", *map(str, TRIED)):
            found = [each for seed in plan.seeds if (each := summary_of(plan.out / f"dev-{way}-{seed}"))]
            print(f"{way:8}" + " ".join(f"{each['f1']['mean']:.3f}" for each in found))
        return
    if not chosen.report:
        jobs = [job for part in ("recipes", "agents") if part in parts for job in getattr(plan, part)()]
        if {"guided", "transfer"} & set(parts):
            jobs = plan.base() + [job for job in jobs if job not in plan.base()]
        if "transfer" in parts:  # the slowest first
            jobs += [job for ways in reversed(plan.transfer().values()) for job in reversed(ways.values())]
        if "guided" in parts:
            jobs += plan.guided()
        carry_out(jobs, chosen.jobs)
    if {"agents", "recipes"} & set(parts):
        tell_agents(plan)
    if "guided" in parts:
        tell_guided(plan)
    if "transfer" in parts:
        tell_transfer(plan)


if __name__ == "__main__":
    main()
