"""What a policy was trained on: the questions, the tokens written and the time of all stages that it descends from.

In: a run and the name of a stage. Out: a `Training`. A stage descends from those whose outputs it takes (policy, trees,
pairs, reward model), and from stages of other runs where a policy or a file was taken from there. Questions are counted
once, however many stages used them. They are chosen again as the stages chose them, by the same seed, or read from what
a stage left; questions that only choose a checkpoint (dev) are not counted.
"""

import gzip
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepladder.core.errors import StepladderError
from stepladder.core.io.records import read_records
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Pair, Question
from stepladder.data.holdout import WARMUP
from stepladder.pipeline.recipe import Stage
from stepladder.pipeline.resources import BASE, GOLD, DataConfig
from stepladder.pipeline.run_folder import StageRecord
from stepladder.pipeline.stages import get_stage
from stepladder.pipeline.stages.pairs import DEV, PAIRS, TRAIN
from stepladder.pipeline.tree_search import TREES
from stepladder.reporting.report.cost import Cost, costs_of
from stepladder.reporting.report.run_data import Run, gather
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.prm.config import PRMConfig
from stepladder.train.prm.prm_questions import choose
from stepladder.train.rft.config import RFTConfig
from stepladder.train.sft.config import SFTConfig
from stepladder.train.transcripts.demonstrations import pick

#: Kinds of stage whose policy writes nothing: they learn from what others have written, or sort it.
_SILENT = frozenset({"dpo", "pairs", "pairs-file", "prm"})
#: Of these the questions are those of what they take.
_NO_QUESTIONS = frozenset({"dpo", "pairs"})


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
        self._questions_of: dict[tuple[DataConfig, str], tuple[Question, ...]] = {}

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
            elif source != GOLD:
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
        recipe, settings = run.report.recipe, stage.settings
        seed = seed_of(recipe.seed, stage.name) % 2**31  # as run/runner.py gives it to the stage
        questions, problem = None, ""
        try:
            ids = self._questions(run, stage, record, seed)
            if ids is not None:
                data = recipe.shared.data.model_dump_json(exclude={"index", "holdout", "warmup"})
                questions = frozenset((data, each) for each in ids)
        except (StepladderError, OSError, ValueError) as error:  # data or trees that have gone: told, not guessed
            problem = str(error)
        copied = isinstance(settings, SFTConfig) and settings.source in ("gold", "trees")
        if written is None and (stage.kind in _SILENT or copied):
            written = 0
        return StageUse(run.folder, stage.name, stage.kind, questions, written, record.seconds, problem)

    def _questions(self, run: Run, stage: Stage, record: StageRecord, seed: int) -> Iterable[str] | None:
        """The ids of the questions that a stage used itself; None where that cannot be known."""
        folder, settings = run.folder / stage.name, stage.settings
        if TREES in record.outputs:
            return _tree_questions(folder / record.outputs[TREES])
        if stage.kind in _NO_QUESTIONS:
            return ()
        if PAIRS in record.outputs:
            files = (folder / record.outputs[PAIRS] / name for name in (TRAIN, DEV))
            return {pair.question_id for file in files for pair in read_records(file, Pair)}
        if isinstance(settings, PRMConfig):
            return self._of_prm(run, settings, record, seed) if settings.chains or settings.episodes else ()
        if isinstance(settings, SFTConfig):
            if settings.source == "trees":
                return ()
            shown = self._split(run, WARMUP if run.report.recipe.shared.data.warmup else "train")
            chosen = pick(shown, settings.questions, seed, balance=settings.balance)
        elif isinstance(settings, RFTConfig | GRPOConfig):
            answerable = [question for question in self._split(run) if question.answers]
            chosen = pick(answerable, settings.questions, seed, balance=settings.balance)
            if isinstance(settings, GRPOConfig):
                chosen = _played(chosen, settings, record, seed)
        else:
            return None
        return (question.id for question in chosen)

    def _of_prm(self, run: Run, settings: PRMConfig, record: StageRecord, seed: int) -> Iterable[str]:
        """Questions that were played for a reward model, or whose gold chains it learnt from."""
        maker = next(each for each in run.in_order if each.name == record.inputs[TREES])
        if TREES not in maker.outputs:
            raise StepladderError(f"the trees of the stage '{maker.name}' are gone")
        explored = _tree_questions(run.folder / maker.name / maker.outputs[TREES])
        chosen = choose(settings, self._split(run), explored, seed)
        return (question.id for question in (*chosen.played, *chosen.chained))

    def _split(self, run: Run, split: str = "train") -> Sequence[Question]:
        """The questions that stages train on."""
        data = run.report.recipe.shared.data
        if (data, split) not in self._questions_of:
            self._questions_of[data, split] = data.open().split(split)
        return self._questions_of[data, split]


def _played(chosen: list[Question], settings: GRPOConfig, record: StageRecord, seed: int) -> list[Question]:
    """Those of the chosen questions that had their turn before reinforcement learning ended."""
    episodes = record.summary.get("episodes")
    if not isinstance(episodes, int):
        raise StepladderError(f"the stage '{record.name}' does not tell how many episodes it played")
    turns = episodes // settings.samples
    if turns >= len(chosen):  # the first so many turns are of different questions
        return chosen
    from stepladder.train.grpo.trainer import schedule  # brings torch and trl

    order, _ = schedule(len(chosen), settings, seed)
    return [chosen[place] for place in order[:turns]]


def _tree_questions(path: Path) -> list[str]:
    """Whose trees are in a file, in its order. Nothing else of the trees is read."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [str(json.loads(line)["question"]["id"]) for line in file]
