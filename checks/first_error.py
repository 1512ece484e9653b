"""How are a policy's steps labelled after its first error?

    python checks/first_error.py TRAJECTORIES ...            # files or folders, as `stepladder eval --out` writes them
    python checks/first_error.py --run RUN [--questions 200]  # samples from the newest policy of a run
    python checks/first_error.py --train OUT                  # the same, with the SFT of the recipe warmup-nano first

In: trajectories of questions with gold decompositions. Out: the number of steps up to the first error, and the gold
judge's labels of those after it, with two rules:

    first error     what follows faithfully from an earlier error is `derived` (the default)
    blame all       such steps are faulty (`derived: faulty` in the settings of stages)

The first error is the first faulty step of an episode. `wrong` counts all faulty steps except those that are `derived`.
`--before SRC` adds a row with the labels of another version, given its `src` folder (`git worktree add OTHER COMMIT`,
then `--before OTHER/src`).
"""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepladder.core.io.records import dumps, read_records
from stepladder.core.trace import Trajectory
from stepladder.oracle.step_judge import judge
from stepladder.oracle.step_verdicts import Verdict

_LABELS = ("wrong", "derived", "good", "unjudged")
#: Labels trajectories from standard input, one list per line. Runs with another version of the package.
_OTHER_VERSION = """
import json, sys
from stepladder.core.io.records import loads
from stepladder.core.trace import Trajectory
from stepladder.oracle.step_judge import judge
for line in sys.stdin:
    verdicts = judge(loads(line, Trajectory))
    print(json.dumps(["unjudged" if each is None else "good" if each.good else "wrong" for each in verdicts]))
"""


def main() -> int:
    """Read or sample the trajectories, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trajectories", nargs="*", type=Path)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--before", type=Path, metavar="SRC")
    given = parser.parse_args()
    if sum(map(bool, (given.trajectories, given.run, given.train))) != 1:
        parser.error("give trajectories, --run or --train")
    if given.train is not None:
        import stepladder as sl

        settings = {"stages.eval-sft.limit": 1, "stages.sft.precision": "fp32", "stages.sft.dev_questions": 30}
        sl.run("warmup-nano", str(given.train), settings)
    run = given.run or given.train
    trajectories = _generate(run, given.questions) if run is not None else _read(given.trajectories)
    report([each for each in trajectories if each.question.hops], given.before)
    return 0


def _read(paths: Sequence[Path]) -> Iterator[Trajectory]:
    for path in paths:
        files = sorted(path.rglob("trajectories.jsonl*")) if path.is_dir() else [path]
        for file in files:
            yield from read_records(file, Trajectory)


def _generate(run: Path, questions: int) -> Iterator[Trajectory]:
    """Episodes of the newest policy of a run on the first train questions."""
    from stepladder.cli import main as stepladder

    out = run / "first-error"
    if not out.is_dir():
        sampling = ["--temperature", "1", "--split", "train", "--limit", str(questions)]
        if status := stepladder(["eval", "--run", str(run), "--out", str(out), *sampling]):
            sys.exit(status)
    return _read([out])


def report(trajectories: Sequence[Trajectory], other: Path | None = None) -> None:
    """Print the labels of the steps after the first error, with both rules; `other`: and by another version's judge."""
    judged = [judge(each) for each in trajectories]
    table = Table("rule", "steps up to the first error", "steps after it", *_LABELS)
    rows = {"blame all": [[_label(each, True) for each in verdicts] for verdicts in judged]}
    rows["first error"] = [[_label(each, False) for each in verdicts] for verdicts in judged]
    if other is not None:
        rows = {str(other): _labels_of_other_version(other, trajectories), **rows}
    for name, all_labels in rows.items():
        before, after = 0, Counter[str]()
        for labels in all_labels:
            first = labels.index("wrong") + 1 if "wrong" in labels else len(labels)
            before += first
            after.update(labels[first:])
        total = after.total()
        shares = [f"{after[label]:,} ({after[label] / max(total, 1):.1%})" for label in _LABELS]
        table.add_row(name, f"{before:,}", f"{total:,}", *shares)
    errors = sum(any(each is not None and each.faulty for each in verdicts) for verdicts in judged)
    console = Console(width=160)
    console.print(f"{len(judged):,} episodes, {errors:,} with an error", highlight=False)
    console.print(table)
    kinds = Counter(_kinds(trajectories, judged))
    console.print("derived steps: " + (", ".join(f"{kind} {count:,}" for kind, count in kinds.items()) or "none"))


def _labels_of_other_version(source: Path, trajectories: Sequence[Trajectory]) -> list[list[str]]:
    """The labels by the judge of another version, which may not know the texts of gold passages."""
    lines = [json.dumps(_without(json.loads(dumps(each)), "gold_texts")) for each in trajectories]
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_VERSION],
        input="".join(f"{line}\n" for line in lines),
        env=os.environ | {"PYTHONPATH": str(source.absolute())},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def _without(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, name) for key, each in value.items() if key != name}
    return [_without(each, name) for each in value] if isinstance(value, list) else value


def _kinds(trajectories: Sequence[Trajectory], judged: Sequence[Iterable[Verdict | None]]) -> Iterator[str]:
    for trajectory, verdicts in zip(trajectories, judged):
        for step, verdict in zip(trajectory.steps, verdicts):
            if verdict is not None and verdict.derived:
                yield step.action.kind.value


def _label(verdict: Verdict | None, blame_all: bool) -> str:
    if verdict is None:
        return "unjudged"
    if verdict.derived:
        return "wrong" if blame_all else "derived"
    return "good" if verdict.good else "wrong"


if __name__ == "__main__":
    sys.exit(main())
