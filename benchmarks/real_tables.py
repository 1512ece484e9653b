"""The files of benchmarks/results for the experiment on real questions, from its folder.

    python benchmarks/real_tables.py runs/real --hardware "one NVIDIA H200" --commit 1a2b3c4 \\
        --command "python experiments/real_questions.py --out runs/real --jobs 6 --evals 2"

In: what `experiments/real_questions.py` has left: `table.json`, and the examinations of the reward models. Out:
`real-bm25.json` and `real-hybrid.json`, a line for each policy, `real-ways.json`, what the policies do over the first
of the two, and `real-prm.json`, a line for each reward model (`--name` for another name than `real`);
`build_results.py` puts them into docs/results-real.md.
"""

import argparse
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from build_results import RESULTS, column

SETS = {"hotpotqa": "HotpotQA", "2wikimultihopqa": "2WikiMultiHopQA", "musique": "MuSiQue"}
KINDS = {"query": "sub-questions", "sub_answer": "sub-answers", "answer": "answers"}
CHAINS = {"gold": "gold", "shuffled": "shuffled", "truncated": "without their end", "answer_first": "answer first"}


def table(
    name: str, title: str, provenance: dict[str, Any], columns: Sequence[Any], rows: Sequence[Any]
) -> dict[str, Any]:
    """A table in the format of benchmarks/results."""
    return {"id": name, "title": title, "source": None, "provenance": provenance, "columns": columns, "rows": rows}


def f1_and_em(found: dict[str, Any]) -> str:
    """Of one set of questions: F1 with its interval, and EM."""
    mean, low, high = found["f1"]
    return f"{mean:.3f} [{low:.3f}, {high:.3f}] / {found['em'][0]:.3f}"


def stages(rows: dict[str, Any], search: str, provenance: dict[str, Any]) -> dict[str, Any]:
    """What each policy comes to."""

    def line(label: str, row: dict[str, Any]) -> dict[str, Any]:
        questions = row["all"]["questions"]
        took = [each for each in row.get("training_seconds", []) if each is not None]
        log = {
            "seconds": round(fmean(took), 1) if took else None,
            "tokens": round(row["tokens_written"] * questions * row["runs"]),
            "about": "seconds: training of this stage, the mean of its runs; tokens: written in the evaluations",
        }
        cells: dict[str, Any] = {"policy": label, "runs": row["runs"]}
        cells |= {name: f1_and_em(row[name]) if name in row else None for name in SETS}
        cells |= {
            "f1": row["all"]["f1"],
            "by_run": " ".join(f"{each:.3f}" for each in row["all"]["f1_by_run"]),
            "em": row["all"]["em"],
            "change": row.get("change"),
            "change_by_run": " ".join(f"{each:+.3f}" for each in row.get("change_by_run", [])) or None,
        }
        return {"cells": cells, "provenance": {"questions": questions, "log": log}}

    columns = [
        column("policy", "policy", "text"),
        column("runs", "runs", "number", ".0f"),
        *(column(f"{title}, F1 / EM", name, "text") for name, title in SETS.items()),
        column("F1 of all", "f1", "interval", ".3f"),
        column("by run", "by_run", "text"),
        column("EM of all", "em", "interval", ".3f"),
        column("less the row it builds on", "change", "interval", "+.3f"),
        column("by run", "change_by_run", "text"),
    ]
    title = f"Real questions over {search}: what each stage brings"
    return table(search, title, provenance, columns, [line(label, row) for label, row in rows.items()])


def ways(rows: dict[str, Any], search: str, provenance: dict[str, Any]) -> dict[str, Any]:
    """How they come to it: what they find, and what they make of it."""

    def line(label: str, row: dict[str, Any]) -> dict[str, Any]:
        known = {"policy": label, "questions": row["all"]["questions"]} | row
        cells = {name: known[name] for name in ("policy", *(each["cell"] for each in columns))}
        return {"cells": cells, "provenance": {"questions": known["questions"]}}

    columns = [
        column("questions", "questions", "number", ".0f"),
        column("searches", "searches", "number", ".1f"),
        column("gold passages found", "gold_recall", "number", ".0%"),
        column("questions with all of them", "found_all", "number", ".0%"),
        column("F1 there", "f1_where_found", "number", ".3f"),
        column("ends with an answer", "answered", "number", ".0%"),
        column("tokens written", "tokens_written", "number", ".0f"),
    ]
    title = f"Real questions over {search}: what is found, and what is made of it"
    all_columns = [column("policy", "policy", "text"), *columns]
    return table("ways", title, provenance, all_columns, [line(label, row) for label, row in rows.items()])


def reward_models(folder: Path, seeds: Sequence[int], provenance: dict[str, Any]) -> dict[str, Any]:
    """How well steps are told apart, and what is thought of whole chains."""
    rows = []
    for seed in seeds:
        place = folder / f"seed-{seed}" / "shared" / "eval-prm" / "examination" / "summary.json"
        found = json.loads(place.read_text(encoding="utf-8"))
        cells: dict[str, Any] = {"seed": str(seed), "steps": found["steps"], "good": found["good"]}
        cells["auc"] = [found["auc"][name] for name in ("mean", "low", "high")]
        cells |= {kind: found["by_kind"][kind]["auc"]["mean"] for kind in KINDS}
        cells |= {f"{name}_chains": found["chains"][name]["passes_0"] for name in CHAINS}
        cells |= {"shuffled_auc": found["chains"]["shuffled"]["auc"]}
        own = {"seeds": [seed], "questions": found["questions"]}
        rows.append({"cells": cells, "provenance": own})
    columns = [
        column("seed", "seed", "text"),
        column("steps", "steps", "number", ".0f"),
        column("good", "good", "number", ".0%"),
        column("AUC", "auc", "interval", ".3f"),
        *(column(f"of {title}", kind, "number", ".2f") for kind, title in KINDS.items()),
        *(column(f"chains accepted: {title}", f"{name}_chains", "number", ".0%") for name, title in CHAINS.items()),
        column("AUC of gold against shuffled chains", "shuffled_auc", "number", ".2f"),
    ]
    return table("prm", "The reward model on real questions", provenance, columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--command", required=True, help="of the experiment, as it was given")
    parser.add_argument("--hardware", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--date", default=datetime.now(UTC).date().isoformat())
    parser.add_argument(
        "--versions", nargs="*", default=[f"{name}={version(name)}" for name in ("torch", "transformers")]
    )
    parser.add_argument("--name", default="real", help="what the files' names begin with")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    told = chosen.folder / "table.json"
    if not told.is_file():
        parser.error(f"{told} is not there: expected what experiments/real_questions.py has left")
    tables = json.loads(told.read_text(encoding="utf-8"))
    if not any(tables.values()):
        parser.error(f"{told} has no rows: nothing is evaluated yet (experiments/real_questions.py --part evaluate)")
    if any("found_all" not in row for table in tables.values() for row in table.values()):
        parser.error(f"{told} is of an earlier version: experiments/real_questions.py --report writes it anew")
    seeds = [int(place.name.removeprefix("seed-")) for place in sorted(chosen.folder.glob("seed-*"))]
    provenance = {
        "command": chosen.command,
        "recipe": ["prorag-smollm2"],
        "seeds": seeds,
        "data": "+".join(SETS),
        "split": "test",
        "questions": max(row["all"]["questions"] for table in tables.values() for row in table.values()),
        "hardware": chosen.hardware,
        "date": chosen.date,
        "commit": chosen.commit,
        "recipe_sha256": None,
        "versions": dict(each.split("=") for each in chosen.versions),
        "log": None,
    }
    made = [stages(rows, search, provenance) for search, rows in tables.items() if rows]
    made += [ways(rows, search, provenance) for search, rows in list(tables.items())[:1] if rows]
    made.append(reward_models(chosen.folder, seeds, provenance))
    for table in made:
        table["id"] = f"{chosen.name}-{table['id']}"
        path = chosen.out / f"{table['id']}.json"
        path.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
