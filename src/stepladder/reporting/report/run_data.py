"""The contents of a run folder.

In: the folder. Out: a `RunData`: finished, interrupted and pending stages, the recipe and the sessions.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder, StageRecord
from stepladder.pipeline.runner import RunReport
from stepladder.pipeline.stage import FinishedStage


@dataclass(frozen=True, slots=True)
class RunData:
    """The data of all sections of a report."""

    #: The finished stages, in recipe order.
    report: RunReport
    #: Stages that were interrupted, or whose outputs were deleted.
    interrupted: tuple[StageRecord, ...]
    #: Names of the stages that have not started.
    pending: tuple[str, ...]
    #: One entry per invocation: versions, machine, command line.
    sessions: tuple[dict[str, Any], ...]
    #: The recipe file in the folder.
    recipe_text: str

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.report.folder

    @property
    def known_stages(self) -> list[StageRecord]:
        """Finished and interrupted stages, in recipe order."""
        known = {stage.name: stage for stage in (*self.report.stages, *self.interrupted)}
        return [known[stage.name] for stage in self.report.recipe.stages if stage.name in known]


def load_run(path: Path) -> RunData:
    """The run in a folder. Raises if there is none."""
    folder = RunFolder.open(path)
    recipe = folder.recipe()
    names = [stage.name for stage in recipe.stages]
    done = {name: record for name in names if (record := folder.done(name)) is not None}
    interrupted = {name: record for name in names if name not in done and (record := folder.known(name)) is not None}
    return RunData(
        RunReport.of(folder, recipe, tuple(done.values()), done),
        tuple(interrupted.values()),
        tuple(name for name in names if name not in done and name not in interrupted),
        tuple(json.loads((path / "run.json").read_text(encoding="utf-8")).get("sessions", ())),
        (path / "recipe.yaml").read_text(encoding="utf-8"),
    )


def finished(run: RunData, record: StageRecord, context: RunContext) -> FinishedStage:
    """A stage of a run, with the paths of its inputs and outputs."""
    recipe = run.report.recipe
    known = {each.name: each for each in run.known_stages}
    inputs = {
        role: run.folder / source / known[source].outputs[role]
        for role, source in record.inputs.items()
        if source in known and role in known[source].outputs
    }
    return FinishedStage(
        next(stage.settings for stage in recipe.stages if stage.name == record.name),
        context,
        record.summary,
        recipe.stage_seed(record.name),
        inputs,
        {role: run.folder / record.name / path for role, path in record.outputs.items()},
    )
