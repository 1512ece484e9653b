"""Which stages of a run train on its pairs, and whether they leave the marked ones out.

In: a run and the ids of the marked pairs of one stage. Out: one row per stage that reads them, for the page.
"""

from collections.abc import Collection
from typing import Any

from stepladder.pipeline.fingerprint import MARKED
from stepladder.pipeline.pair_folder import PairInputConfig
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS


def pair_readers(run: RunFolder, source: str, marked: Collection[str]) -> list[dict[str, Any]]:
    """The stages that train on the pairs of `source`: whether they exclude marked pairs, and whether all of these."""
    found = []
    for stage in run.recipe().stages:
        if stage.inputs.get(PAIRS) != source or not isinstance(stage.settings, PairInputConfig):
            continue
        record = run.known(stage.name)
        left_out = set(record.ingredients.get(MARKED, ())) if record is not None else set()
        done = run.done(stage.name) is not None
        excludes = stage.settings.exclude_marked
        stale = done and excludes and left_out != set(marked)
        row = {"stage": stage.name, "kind": stage.kind, "excludes": excludes, "done": done, "stale": stale}
        found.append({**row, "left_out": len(left_out)})
    return found
