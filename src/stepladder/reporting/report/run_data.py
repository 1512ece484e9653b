"""A run as it lies in its folder.

In: the folder. Out: a `Run`: the stages that are done, those that were begun, those that nobody has begun yet, and who
worked on it when.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.pipeline.resources import GOLD
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.runner import RunReport


@dataclass(frozen=True, slots=True)
class Run:
    """What the sections of a report are made from."""

    #: The stages that are done, in the recipe's order.
    report: RunReport
    #: Stages that were begun and cut, or whose results are gone.
    begun: tuple[StageRecord, ...]
    #: Names of the stages that were not begun.
    waiting: tuple[str, ...]
    #: One entry each time somebody worked on the run: versions, machine, command line.
    sessions: tuple[dict[str, Any], ...]
    #: The recipe, as it is written in the folder.
    recipe_text: str

    @property
    def folder(self) -> Path:
        """Where the run lies."""
        return self.report.folder

    @property
    def evaluations(self) -> list[StageRecord]:
        """The evaluations that are done, in the recipe's order."""
        return [stage for stage in self.report.stages if stage.kind == "eval"]

    @property
    def played(self) -> list[StageRecord]:
        """The evaluations of models: all but the oracle's."""
        return [stage for stage in self.evaluations if stage.inputs["policy"] != GOLD]

    @property
    def in_order(self) -> list[StageRecord]:
        """Every stage of which something is known, done or not, in the recipe's order."""
        known = {stage.name: stage for stage in (*self.report.stages, *self.begun)}
        return [known[stage.name] for stage in self.report.recipe.stages if stage.name in known]


def gather(path: Path) -> Run:
    """The run in a folder; an error where there is none."""
    folder = RunFolder.open(path)
    recipe = folder.recipe()
    names = [stage.name for stage in recipe.stages]
    done = {name: record for name in names if (record := folder.done(name)) is not None}
    begun = {name: record for name in names if name not in done and (record := folder.known(name)) is not None}
    return Run(
        RunReport(recipe, path, tuple(done.values()), tuple(done), folder.newest("policy")),
        tuple(begun.values()),
        tuple(name for name in names if name not in done and name not in begun),
        tuple(json.loads((path / "run.json").read_text(encoding="utf-8")).get("sessions", ())),
        (path / "recipe.yaml").read_text(encoding="utf-8"),
    )
