"""The provenance of a policy: questions, generated tokens and time of all stages it depends on.

In: a run and the name of a stage. Out: a `Provenance`. A stage depends on the stages whose outputs it reads (policy,
trees, pairs, reward model), also across runs. Each stage declares its questions (`StageSpec.questions`). A question is
counted once, however many stages used it; questions that only select a checkpoint (dev) are not counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.data.data_config import DataConfig
from stepladder.pipeline.policy_choice import Regression
from stepladder.pipeline.recipe import Stage
from stepladder.pipeline.resources import BASE, ORACLE, SERVER, RunContext, SharedConfig
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.report.cost import cost_of
from stepladder.reporting.report.run_data import RunData, finished, load_run


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage consumed. None means unknown."""

    run: Path
    stage: str
    #: (data, question id): ids of different data sets may coincide.
    questions: frozenset[tuple[str, str]] | None
    tokens_written: int | None
    seconds: float | None
    #: Why the questions are unknown.
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Provenance:
    """All stages that a policy depends on, in order. A sum is known only if all of its parts are."""

    stages: tuple[StageUse, ...]

    @property
    def questions(self) -> int | None:
        """Number of distinct questions."""
        used = [stage.questions for stage in self.stages]
        return None if None in used else len({question for each in used for question in each or ()})

    @property
    def tokens_written(self) -> int | None:
        """Tokens generated for training, without judges and without episodes that only select a checkpoint."""
        written = [stage.tokens_written for stage in self.stages]
        return None if None in written else sum(filter(None, written))

    def names_in(self, run: Path) -> list[str]:
        """The names of the stages of one run."""
        return [stage.stage for stage in self.stages if stage.run == run.resolve()]

    @property
    def minutes(self) -> float | None:
        """Time, without attempts that were killed."""
        seconds = [stage.seconds for stage in self.stages]
        return None if None in seconds else sum(filter(None, seconds)) / 60


def producing_stage(path: str | Path | None) -> tuple[Path, str] | None:
    """The run folder and stage that wrote a file or folder; None if no run did."""
    if path is None or not Path(path).exists():
        return None
    resolved = Path(path).resolve()
    for folder in resolved.parents[:3]:
        if (folder / "run.json").is_file():
            return folder, resolved.relative_to(folder).parts[0]
    return None


class ProvenanceResolver:
    """Resolves provenance. Caches the runs and data that it opens."""

    def __init__(self) -> None:
        self._runs: dict[Path, RunData] = {}
        self._contexts: dict[DataConfig, RunContext] = {}

    def resolve(self, origins: Iterable[tuple[Path, str]]) -> Provenance:
        """The provenance of the outputs of (run, stage) pairs."""
        found: dict[tuple[Path, str], StageUse] = {}
        for run, stage in origins:
            self._add(run.resolve(), stage, found)
        return Provenance(tuple(found.values()))

    def regression(self, run: Path, stage: str) -> Regression | None:
        """Set if the stage of a run ended worse than it began."""
        return self._run(run.resolve()).report.worse.get(stage)

    def _run(self, folder: Path) -> RunData:
        run = self._runs[folder] = self._runs.get(folder) or load_run(folder)
        return run

    def _add(self, folder: Path, name: str, found: dict[tuple[Path, str], StageUse]) -> None:
        if (folder, name) in found:
            return
        run = self._run(folder)
        record = next((each for each in run.known_stages if each.name == name), None)
        stage = next((each for each in run.report.recipe.stages if each.name == name), None)
        if record is None or stage is None:
            found[folder, name] = StageUse(folder, name, None, None, None, "the run has no record of this stage")
            return
        external = [getattr(stage.settings, setting) for setting in get_stage(stage.kind).external_files]
        for source in record.inputs.values():
            if source == BASE:
                external.append(run.report.recipe.shared.policy)
            elif source not in (ORACLE, SERVER):
                self._add(folder, source, found)
        for path in external:
            if (origin := producing_stage(path)) is not None:
                self._add(*origin, found)
        found[folder, name] = self._use(run, stage, record)

    def _use(self, run: RunData, stage: Stage, record: StageRecord) -> StageUse:
        shared, spec = run.report.recipe.shared, get_stage(stage.kind)
        written = cost_of(run, record).tokens_written if record in run.report.stages else None
        questions, problem = None, ""
        try:
            ids = spec.questions(finished(run, record, self._context(shared)))
            if ids is not None:
                data = shared.data.model_dump_json(exclude={"index", "holdout", "warmup", "train_questions"})
                questions = frozenset((data, each) for each in ids)
        except (StepladderError, OSError, ValueError) as error:  # data or trees were deleted: report it, do not guess
            problem = str(error)
        if written is None and not spec.generates(stage.settings):
            written = 0
        return StageUse(run.folder, stage.name, questions, written, record.seconds, problem)

    def _context(self, shared: SharedConfig) -> RunContext:
        """The context of a run, whose data are opened once for all runs that share them."""
        return self._contexts.setdefault(shared.data, RunContext(shared, Console(quiet=True)))
