"""What a policy was trained on: the questions, the tokens written and the time of all stages that it descends from.

In: a run and the name of a stage. Out: a `Training`. A stage descends from those whose outputs it takes (policy, trees,
pairs, reward model), and from stages of other runs where a policy or a file was taken from there. Questions are counted
once, however many stages used them. They are chosen again as the stages chose them, by the same seed, or read from what
a stage left; questions that only choose a checkpoint (dev) are not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.pipeline.recipe import Stage
from stepladder.pipeline.resources import BASE, ORACLE, DataConfig, RunContext, SharedConfig
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.report.cost import Cost, costs_of
from stepladder.reporting.report.run_data import Run, finished, gather


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage used. None is not known."""

    run: Path
    stage: str
    kind: str
    #: Each with the data that it is of: ids of other data may be the same.
    questions: frozenset[tuple[str, str]] | None
    tokens_written: int | None
    seconds: float | None
    #: Why the questions are not known.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Training:
    """All stages that a policy descends from, the first one first. A sum is known where each of its parts is."""

    stages: tuple[StageUse, ...]

    @property
    def questions(self) -> int | None:
        """Distinct questions."""
        used = [stage.questions for stage in self.stages]
        known = [each for each in used if each is not None]
        return len(frozenset[tuple[str, str]]().union(*known)) if len(known) == len(used) else None

    @property
    def tokens_written(self) -> int | None:
        """Tokens that policies wrote to learn from; judges, and episodes that choose a checkpoint, are not counted."""
        known = [stage.tokens_written for stage in self.stages if stage.tokens_written is not None]
        return sum(known) if len(known) == len(self.stages) else None

    def names_in(self, run: Path) -> list[str]:
        """Those of the stages that are of one run."""
        return [stage.stage for stage in self.stages if stage.run == run.resolve()]

    @property
    def minutes(self) -> float | None:
        """Time of the attempts that ended in good order."""
        known = [stage.seconds for stage in self.stages if stage.seconds is not None]
        return sum(known) / 60 if len(known) == len(self.stages) else None


def origin_of(place: str | Path | None) -> tuple[Path, str] | None:
    """The run and the stage that made a file or folder; None where no run did."""
    if place is None or not Path(place).exists():
        return None
    path = Path(place).resolve()
    for folder in path.parents[:3]:
        if (folder / "run.json").is_file():
            return folder, path.relative_to(folder).parts[0]
    return None


class Lineages:
    """Finds what policies descend from. What it has opened, runs and data, it keeps for the next."""

    def __init__(self) -> None:
        self._runs: dict[Path, tuple[Run, dict[str, Cost]]] = {}
        self._contexts: dict[DataConfig, RunContext] = {}

    def training_of(self, run: Path, *stages: str) -> Training:
        """What the outputs of some stages of a run were made from."""
        return self.training_from([(run, stage) for stage in stages])

    def training_from(self, origins: Iterable[tuple[Path, str]]) -> Training:
        """What the outputs of stages, each with its run, were made from."""
        found: dict[tuple[Path, str], StageUse] = {}
        for run, stage in origins:
            self._add(run.resolve(), stage, found)
        return Training(tuple(found.values()))

    def _add(self, folder: Path, name: str, found: dict[tuple[Path, str], StageUse]) -> None:
        if (folder, name) in found:
            return
        run, costs = self._opened(folder)
        record = next((each for each in run.in_order if each.name == name), None)
        stage = next((each for each in run.report.recipe.stages if each.name == name), None)
        if record is None or stage is None:
            found[folder, name] = StageUse(folder, name, "", None, None, None, "nothing is known of this stage")
            return
        outside = [getattr(stage.settings, setting) for setting in get_stage(stage.kind).external_files]
        for source in record.inputs.values():
            if source == BASE:
                outside.append(run.report.recipe.shared.policy)
            elif source != ORACLE:
                self._add(folder, source, found)
        for place in outside:
            if (origin := origin_of(place)) is not None:
                self._add(*origin, found)
        found[folder, name] = self._use(run, stage, record, costs[name].written)

    def _opened(self, folder: Path) -> tuple[Run, dict[str, Cost]]:
        if folder not in self._runs:
            run = gather(folder)
            costs = costs_of(run)
            self._runs[folder] = run, {} if costs is None else {each.stage: each for each in costs.stages}
        return self._runs[folder]

    def _use(self, run: Run, stage: Stage, record: StageRecord, written: int | None) -> StageUse:
        shared, spec = run.report.recipe.shared, get_stage(stage.kind)
        questions, problem = None, ""
        try:
            ids = spec.questions(finished(run, record, self._context(shared)))
            if ids is not None:
                data = shared.data.model_dump_json(exclude={"index", "holdout", "warmup"})
                questions = frozenset((data, each) for each in ids)
        except (StepladderError, OSError, ValueError) as error:  # data or trees were deleted: report it, do not guess
            problem = str(error)
        if written is None and not spec.generates(stage.settings):
            written = 0
        return StageUse(run.folder, stage.name, stage.kind, questions, written, record.seconds, problem)

    def _context(self, shared: SharedConfig) -> RunContext:
        """The context of a run, whose data are opened once for all runs that share them."""
        return self._contexts.setdefault(shared.data, RunContext(shared, Console(quiet=True)))
