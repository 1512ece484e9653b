"""Comparison of runs on the same questions: a table, an HTML page, JSON.

In: run folders and saved evaluations. Out: a `RunComparison`: one arm per method, with intervals, paired differences
vs. a reference, inference cost and training cost. No model is loaded and no user code is run.

evaluations.py    parses `[LABEL=]PATH[:STAGE]` and loads the evaluations
provenance.py     what the evaluated policy was trained on: questions, tokens, minutes
seed_groups.py    groups evaluations that differ only in their seed into arms, and names the arms
comparison.py     the numbers, corrected for multiple tests; as JSON
compare_table.py  the table on a terminal
compare_page.py   the HTML page
"""

import os

from stepladder.reporting.compare.compare_page import write_comparison
from stepladder.reporting.compare.comparison import RunComparison, compare_arms, comparison_json
from stepladder.reporting.compare.evaluations import load_sources
from stepladder.reporting.compare.seed_groups import group_by_seed

__all__ = [
    "RunComparison",
    "compare",
    "compare_arms",
    "comparison_json",
    "group_by_seed",
    "load_sources",
    "write_comparison",
]


def compare(*runs: str | os.PathLike[str], stage: str | None = None, metric: str = "f1") -> RunComparison:
    """Compare runs or saved evaluations on the questions they share. The first is the reference.

    Each is a run, a folder, or `[LABEL=]FOLDER[:STAGE]`. Runs that differ only in their seed become one arm. `.show()`
    prints the table.
    """
    texts = [str(getattr(each, "folder", each)) for each in runs]
    return compare_arms(group_by_seed(load_sources(texts, stage)), metric=metric)
