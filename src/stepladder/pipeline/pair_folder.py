"""The folder of preference pairs that the stages `pairs` and `pairs-file` write: two files of pairs, and `stats.json`.

In: pairs with their split. Out: the folder, and a summary. Stages that train on the pairs can leave out those that the
user marked as wrong (`PairInputConfig`); the marks are beside the folder and survive when the stage is computed again.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import atomic_folder
from stepladder.core.io.records import dumps
from stepladder.core.trace import Pair
from stepladder.pipeline.stage import PAIRS, StageResult, Task
from stepladder.preferences.marks import MARKS_FILE, MarkedFilter, read_marks
from stepladder.preferences.pair_checks import read_pairs
from stepladder.preferences.pair_stats import PairStats

if TYPE_CHECKING:
    from stepladder.pipeline.recipe import Recipe

TRAIN_PAIRS, DEV_PAIRS = "train.jsonl", "dev.jsonl"
#: Files beside the folder that stay when its stage is computed again.
PAIR_PERSISTENT_FILES = (MARKS_FILE,)


class PairInputConfig(Config):
    """Of a stage that trains on pairs: which of them it takes."""

    #: Leave out the pairs that are marked as wrong (`stepladder studio`). New marks make the stage stale.
    exclude_marked: bool = False

    def inert(self) -> frozenset[str]:
        """`exclude_marked`: the marks themselves are fingerprinted, so it changes nothing where there are none."""
        return super().inert() | {"exclude_marked"}


def marked_pairs(recipe: "Recipe", folder: Path) -> dict[str, frozenset[str]]:
    """The ids of the marked pairs that a stage leaves out, by stage, for the run in a folder."""
    return {
        stage.name: frozenset(read_marks(folder / stage.inputs[PAIRS] / PAIRS))
        for stage in recipe.stages
        if isinstance(stage.settings, PairInputConfig) and stage.settings.exclude_marked and PAIRS in stage.inputs
    }


def input_pairs(task: Task) -> tuple[Iterable[Pair], Iterable[Pair], MarkedFilter]:
    """The training and held-out pairs of a task without marked ones, which are counted as the pairs are read."""
    unmarked = MarkedFilter(task.marked)
    train, held_out = read_pairs(task.inputs[PAIRS])
    return unmarked(train, f"training pairs of {task.inputs[PAIRS]}"), unmarked(held_out), unmarked


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
