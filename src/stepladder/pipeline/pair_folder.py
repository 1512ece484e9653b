"""The folder of preference pairs that the stages `pairs` and `pairs-file` write: two files of pairs, and `stats.json`.

In: pairs with their split. Out: the folder, and a summary.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.io.records import dumps
from stepladder.core.trace import Pair
from stepladder.pipeline.stage import PAIRS, StageResult, Task
from stepladder.preferences.pair_stats import PairStats

TRAIN_PAIRS, DEV_PAIRS = "train.jsonl", "dev.jsonl"


def write_pairs(task: Task, pairs: Iterable[tuple[str, Pair]], source: object, **numbers: Any) -> StageResult:
    """Write pairs, each given with its file name. `numbers` are added to the summary; errors name the `source`."""
    stats, counts = PairStats(), Counter[str]()
    judges = set()
    with atomic_folder(task.folder / PAIRS, what="pairs") as folder:
        with (folder / TRAIN_PAIRS).open("wb") as train, (folder / DEV_PAIRS).open("wb") as dev:
            files = {TRAIN_PAIRS: train, DEV_PAIRS: dev}
            for name, pair in pairs:
                stats.add(pair)
                counts[name] += 1
                judges.add(pair.judge)
                files[name].write(f"{dumps(pair)}\n".encode())
        if not counts[TRAIN_PAIRS]:
            raise StepladderError(f"{task.name}: {source} has no training pairs; expected at least one")
        sizes = {"train": counts[TRAIN_PAIRS], "dev": counts[DEV_PAIRS]}
        summary = {**stats.summary(), **sizes, "judge": ", ".join(sorted(judges)), "dropped": {}, **numbers}
        (folder / "stats.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return StageResult(summary, {PAIRS: task.folder / PAIRS})
