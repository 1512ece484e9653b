"""Runs kept as a table of docs/results*.md, with what they were made by.

    python benchmarks/record.py --id trees --title "Trees" --from tree=runs/tree-0 tree=runs/tree-1

In: runs as `stepladder compare` takes them, [LABEL=]PATH[:STAGE]; those of one label, or that differ by their seed
alone, are one line. Out: benchmarks/results/ID.json, and the two lines that give the table its place on the page.
Commit, versions, hardware and date are those of the run, which noted them: this machine may be another.
"""

import argparse
import hashlib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from build_results import BEGIN, END, RESULTS, column, table_of
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_file
from stepladder.evaluation.statistics import Interval
from stepladder.pipeline.run_folder import RunFolder
from stepladder.reporting.compare import RunComparison, compare_arms, group_by_seed, load_sources
from stepladder.reporting.compare.comparison import Arm
from stepladder.reporting.compare.evaluations import EvaluationSource
from stepladder.reporting.compare.seed_groups import SeedGroup

_NOTED = ("command", "device", "cores", "started", "versions", "git")
#: What makes no other recipe.
_ASIDE = ("seed", "device", "batch_size")


# --- what was measured ------------------------------------------------------------------------------------------


def columns_of(compared: RunComparison) -> list[dict[str, Any]]:
    """The columns of a comparison; those about seeds and about differences only where there are any."""

    several = any(len(line.seeds) > 1 for line in compared.arms)
    return [
        column("", "line", "text"),
        column("F1", "f1", "interval", ".3f"),
        *([column("by seed", "f1_by_seed", "seeds", ".3f")] if several else []),
        *([column(f"less {compared.reference}", "difference", "interval", "+.3f")] if compared.differences else []),
        column("EM", "em", "interval", ".3f"),
        column("searches", "searches_made", "number", ".1f"),
        column("tokens read", "tokens_read", "number", ",.0f"),
        column("tokens written", "tokens_written", "number", ",.0f"),
        column("malformed", "malformed", "number", ".0%"),
        column("training questions", "training_questions", "number", ",.0f"),
        column("tokens written in training", "training_tokens", "number", ",.0f"),
    ]


def cells_of(line: Arm, compared: RunComparison) -> dict[str, Any]:
    """Everything that a column may show of a line. What is not known is None."""

    def three(interval: Interval) -> list[float]:
        return [_short(each) for each in (interval.mean, interval.low, interval.high)]

    change = compared.differences.get(line.label)
    means = ("searches_made", "tokens_read", "tokens_written", "malformed")
    return {
        "line": line.label,
        "f1": three(line.scores["f1"]),
        "f1_by_seed": [_short(seed.means["f1"] or 0.0) for seed in line.seeds],
        "difference": None if change is None else three(change.difference),
        "em": three(line.scores["em"]),
        **{name: None if (value := line.mean(name)) is None else _short(value) for name in means},
        "training_questions": line.training("questions"),
        "training_tokens": line.training("tokens"),
    }


def _short(value: float) -> float:
    return round(value, 6)


# --- what it was made by ----------------------------------------------------------------------------------------


def provenance_of(group: SeedGroup, line: Arm, questions: int) -> dict[str, Any]:
    """How the runs of a line were made, as they noted it."""
    runs = {source.path: _run_of(source) for source in group.sources}
    recipes = {_recipe_hash(run): run.recipe() for run in runs.values()}
    if len(recipes) > 1:
        raise StepladderError(
            f"the line '{group.label}' is of runs that differ by more than their seed; label them apart"
        )
    ((digest, recipe),) = recipes.items()
    stage = group.sources[0].stage
    split = next(each.plain()["split"] for each in recipe.stages if each.name == stage)
    folders = list({run.path.resolve(): run for run in runs.values()}.values())
    sessions = [session for run in folders for session in _sessions(run)]
    last = max(sessions, key=lambda session: str(session["started"]))
    tokens = [seed.training_tokens for seed in line.seeds]
    git = last["git"]
    return {
        "command": shlex.join(["stepladder", *sessions[0]["command"][1:]]),
        "recipe": [recipe.name],
        "seeds": [source.seed for source in group.sources],
        "data": _data_name(recipe.shared.data.model_dump(mode="json"), split),
        "split": split,
        "questions": questions,
        "hardware": " and ".join(dict.fromkeys(f"{each['device']}, {each['cores']} CPU cores" for each in sessions)),
        "date": str(last["started"])[:10],
        "commit": None if git is None else git["revision"] + (" with changes" if git["dirty"] else ""),
        "recipe_sha256": digest,
        "versions": last["versions"],
        "log": {
            "seconds": round(sum(_seconds(run) for run in folders), 1),
            "tokens": None if None in tokens else sum(each or 0 for each in tokens),
            "about": "all stages of the runs of all seeds; tokens that policies wrote to learn from",
        },
    }


def _run_of(source: EvaluationSource) -> RunFolder:
    path, _, stage = source.path.rpartition(":")
    if not path or stage != source.stage:
        raise StepladderError(
            f"{source.path} is a saved evaluation, which does not say where and when it was made; name a run, or "
            "write the file by hand (benchmarks/results/README.md)"
        )
    return RunFolder.open(Path(path))


def _sessions(run: RunFolder) -> list[dict[str, Any]]:
    file = run.path / "run.json"
    found: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["sessions"]
    for session in found:
        if missing := [name for name in _NOTED if name not in session]:
            raise StepladderError(f"{file}: a session does not say its {', '.join(missing)}: it cannot be recorded")
    return found


def _recipe_hash(run: RunFolder) -> str:
    """Of the recipe with every value, but for what may differ between its runs."""
    plain = {name: value for name, value in run.recipe().plain().items() if name not in _ASIDE}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _data_name(data: dict[str, Any], split: str) -> str:
    """The name of the data set; of folders and files the last part: where they were is of no use to others."""
    return "+".join(Path(part).name for part in str(data[split] if data.get(split) else data["name"]).split("+"))


def _seconds(run: RunFolder) -> float:
    return sum(record.seconds for name in run.stage_names() if (record := run.done(name)) is not None)


# --- the file ---------------------------------------------------------------------------------------------------


def table_from(runs: Sequence[str], name: str, title: str) -> dict[str, Any]:
    """What the file holds. Whatever all lines have in common is said once."""
    groups = group_by_seed(load_sources(runs))
    compared = compare_arms(groups)
    columns = columns_of(compared)
    wanted = [column["cell"] for column in columns]
    made = [provenance_of(group, line, compared.questions) for group, line in zip(groups, compared.arms, strict=True)]
    common = {field: value for field, value in made[0].items() if all(each[field] == value for each in made)}
    rows = []
    for line, provenance in zip(compared.arms, made, strict=True):
        cells = cells_of(line, compared)
        own = {field: value for field, value in provenance.items() if field not in common}
        rows.append({"cells": {cell: cells[cell] for cell in wanted}, **({"provenance": own} if own else {})})
    return {"id": name, "title": title, "source": None, "provenance": common, "columns": columns, "rows": rows}


def as_text(table: dict[str, Any]) -> str:
    """JSON that is read with ease: a line a field of the provenance, a column, a row."""

    def text(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    def block(value: object) -> str:
        if isinstance(value, dict):
            return "{\n" + ",\n".join(f"    {text(name)}: {text(each)}" for name, each in value.items()) + "\n  }"
        if isinstance(value, list):
            return "[\n" + ",\n".join(f"    {text(each)}" for each in value) + "\n  ]"
        return text(value)

    return "{\n" + ",\n".join(f"  {text(name)}: {block(value)}" for name, value in table.items()) + "\n}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file; 2 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--id", required=True, help="the name of the table, and of its file")
    parser.add_argument("--title", required=True)
    parser.add_argument("--from", dest="runs", nargs="+", required=True, metavar="RUN", help="[LABEL=]PATH[:STAGE]")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder of the JSON files")
    parser.add_argument("--overwrite", action="store_true", help="replace a table of this name")
    chosen = parser.parse_args(arguments)
    path = chosen.results / f"{chosen.id}.json"
    try:
        if path.exists() and not chosen.overwrite:
            raise StepladderError(f"{path} exists already; say --overwrite to replace it")
        table = table_from(chosen.runs, chosen.id, chosen.title)
        table_of(json.loads(as_text(table)), path.name)
        with atomic_file(path) as file:
            file.write(as_text(table))
    except StepladderError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{path}: {len(table['rows'])} lines. Its place on the page:\n\n{BEGIN.format(chosen.id)}\n{END}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
