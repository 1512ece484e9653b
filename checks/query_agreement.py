"""Does the gold judge agree with the labels of natural queries (`tests/data/queries.jsonl`)?

    python checks/query_agreement.py [--missed]
    python checks/query_agreement.py --add ROWS.jsonl --data FOLDER

Out: one row per data set, split and source: how many good and bad queries the judge agrees with. `--missed` lists the
others. `--add` adds labelled queries, such as those of a model, one JSON object per line:

    {"set": "hotpotqa", "id": "5ab6...", "known": [1], "query": "Where did ... study?", "label": "good",
     "why": "sampled", "source": "qwen"}

`known` are the hops that were answered before; `why` of a bad query is entity, relation, known, unrelated or whole.
FOLDER has the data sets in FlashRAG's layout: the queries are searched in their corpora (BM25, three results).
Questions of a train file are for developing, those of a dev file are held out.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from stepladder.core.trace import Question
from stepladder.data import load_dataset
from stepladder.oracle.step_judge import judge
from stepladder.retrieval.index.bm25 import BM25Index
from tests.support.labelled_queries import QUERIES, labelled_queries

_SPLITS = {"train": "develop", "dev": "held out"}
#: Characters of a passage that are kept.
_EXCERPT = 420


def main() -> int:
    """Add queries, or print the agreement; the exit status is 1 if it is below 95% on any set and label."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missed", action="store_true")
    parser.add_argument("--add", type=Path)
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    if (given.add is None) != (given.data is None):
        parser.error("--add needs --data, and the other way around")
    if given.add is not None:
        add(given.add, given.data)
    return report(given.missed)


def report(show_missed: bool) -> int:
    """Print the agreement."""
    right: Counter[tuple[str, str, str, str]] = Counter()
    total: Counter[tuple[str, str, str, str]] = Counter()
    console = Console(width=200)
    for each in labelled_queries():
        verdict = judge(each.trajectory)[-1]
        said = "unjudged" if verdict is None or verdict.derived else "good" if verdict.good else "bad"
        key = each.dataset, each.split, each.source, each.label
        total[key] += 1
        right[key] += said == each.label
        if show_missed and said != each.label:
            question, reason = each.trajectory.question.text, verdict.reason if verdict else ""
            line = f"{each.dataset} {each.split}: {each.label} ({each.why}), judged {said}: {reason}"
            console.print(f"{line}\n    {each.trajectory.queries[-1]}\n    {question}", markup=False, highlight=False)
    table = Table("set", "split", "source", "good", "bad", title="Agreement of the gold judge with labels")
    shares = {}
    for name in sorted({key[0] for key in total}):
        rows = sorted({key[1:3] for key in total if key[0] == name})
        for split, source in [*rows, ("all", "all")]:
            cells = []
            for label in ("good", "bad"):
                keys = [k for k in total if k[0] == name and k[3] == label and (split in ("all", k[1]))]
                keys = [k for k in keys if source in ("all", k[2])]
                hits, count = sum(right[k] for k in keys), sum(total[k] for k in keys)
                shares[name, split, source, label] = hits / count if count else 1.0
                cells.append(f"{hits}/{count} = {hits / count:.1%}" if count else "-")
            table.add_row(name, split, source, *cells, end_section=split == "all")
    console.print(table)
    return int(any(value < 0.95 for key, value in shares.items() if key[1] == "all"))


def add(rows: Path, data: Path) -> None:
    """Add labelled queries to the file, with the gold passages that they find."""
    with QUERIES.open(encoding="utf-8") as lines:
        known = {(row["set"], row["id"]): row for row in map(json.loads, lines)}
    new = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines() if line.strip()]
    for name in sorted({row["set"] for row in new}):
        dataset = load_dataset(str(data / name))
        assert dataset.passages is not None
        passages = {passage.id: passage for passage in dataset.passages}
        index = BM25Index.from_passages(list(passages.values()))
        questions = {each.id: (each, _SPLITS[split]) for split in _SPLITS for each in dataset.split(split)}
        for row in (row for row in new if row["set"] == name):
            question, split = questions[row["id"]]
            entry = known.setdefault((name, question.id), _entry(name, split, question))
            gold = {key for hop in question.hops for key in hop.passages}
            found = [passage.id for passage in index.search([row["query"]], 3)[0] if passage.id in gold]
            entry["passages"].update({key: [passages[key].title, passages[key].text[:_EXCERPT]] for key in found})
            fields = {key: row[key] for key in ("known", "query", "label", "why", "source")}
            if fields["query"] not in [each["query"] for each in entry["queries"]]:
                entry["queries"].append({**fields, "found": found})
    lines = [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in known.values()]
    QUERIES.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _entry(name: str, split: str, question: Question) -> dict[str, Any]:
    hops = [
        {
            "question": hop.question,
            "answer": hop.answer,
            **({"passages": list(hop.passages)} if hop.passages else {}),
            **({"aliases": list(hop.aliases)} if hop.aliases else {}),
        }
        for hop in question.hops
    ]
    head = {"set": name, "split": split, "id": question.id, "question": question.text}
    return {
        **head,
        "answers": list(question.answers),
        "kind": question.kind,
        "hops": hops,
        "passages": {},
        "queries": [],
    }


if __name__ == "__main__":
    sys.exit(main())
