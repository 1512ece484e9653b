"""Is a commit as fast as another? Runs benchmarks of both, taking turns, and prints their tables side by side.

    python checks/same_speed.py 4aba644 HEAD driver_speed bm25_speed nano_speed --out runs/same-speed

In: two commits and names of benchmarks (default: those that need a few minutes on a laptop). Out: for every line of
their tables the numbers of both commits, each the median of --rounds runs, and their ratio. Nothing is judged here:
machines are noisy, and a ratio counts only if it stays on one side over several runs.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

from same_scores import worktree_of

BENCHMARKS = ("driver_speed", "bm25_speed", "nano_speed", "explore_speed", "prm_speed")
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w.])")


def measure(worktree: Path, benchmark: str) -> dict[str, list[float]]:
    """The numbers of one run, by line; the text of a line without its numbers is its name."""
    script = worktree / "benchmarks" / f"{benchmark}.py"
    environment = {**os.environ, "PYTHONPATH": str(worktree / "src")}
    output = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    if output.returncode:
        print(f"{script} failed:\n{output.stdout[-500:]}{output.stderr[-500:]}", flush=True)
        return {}
    found: dict[str, list[float]] = {}
    for number, line in enumerate(output.stdout.splitlines()):
        if values := [float(each.replace(",", "")) for each in _NUMBER.findall(line)]:
            found[f"{number:2d} {_NUMBER.sub('#', ' '.join(line.split()))}"] = values
    return found


def main() -> int:
    """Measure both and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commits", nargs=2, metavar="COMMIT")
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/same-speed"))
    chosen = parser.parse_args()
    out = chosen.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    worktrees = [worktree_of(commit, out) for commit in chosen.commits]
    for benchmark in chosen.benchmarks:
        runs: list[list[dict[str, list[float]]]] = [[], []]
        for _ in range(chosen.rounds):
            for each, worktree in zip(runs, worktrees):
                each.append(measure(worktree, benchmark))
        print(f"\n== {benchmark}: {' | '.join(chosen.commits)} | ratio ==")
        for index, (name, values) in enumerate(runs[0][0].items()):
            for column in range(len(values)):
                medians = [_median(side, index, column) for side in runs]
                if None not in medians and medians[0]:
                    print(f"{name[3:80]:78}{medians[0]:>14,.2f}{medians[1]:>14,.2f}{medians[1] / medians[0]:>8.2f}")
    return 0


def _median(runs: list[dict[str, list[float]]], index: int, column: int) -> float | None:
    """The median over runs of one number. Lines are matched by their position: their words may differ."""
    rows = [list(run.values()) for run in runs]
    found = [row[index][column] for row in rows if len(row) > index and len(row[index]) > column]
    return statistics.median(found) if found else None


if __name__ == "__main__":
    sys.exit(main())
