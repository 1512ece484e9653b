"""The contract of a stage: a function of its settings, the run context and the outputs of earlier stages.

A stage takes inputs of some roles (policy, trees, pairs, reward) and writes outputs of some roles. An input is taken
from the newest earlier stage that writes this role. A stage also declares how it is summarized, what it cost and which
questions it used, so that tables, reports and comparisons need no knowledge of single stages.
"""

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.core.config import Config
from stepladder.core.trace import Question
from stepladder.data.sampling import sample_questions
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.stage_summary import Numbers, StageCost, StageSummary, cost_from_summary

#: Roles of inputs and outputs. A policy is a model folder, trees are one file, the others are folders.
POLICY, TREES, PAIRS, REWARD = "policy", "trees", "pairs", "reward"
EVALUATION, EXAMINATION = "evaluation", "examination"


@dataclass(frozen=True, slots=True)
class Task:
    """One stage of one run, apart from its settings."""

    #: The stage's name in the recipe.
    name: str
    #: Where to write. Partial results of an interrupted attempt are still there: resume from them.
    folder: Path
    seed: int
    #: By role: path or name of each input.
    inputs: Mapping[str, str]
    #: Ids of the pairs that the user marked as wrong and that are left out (preferences/marks.py).
    marked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage returns: summary numbers, and the paths of its outputs by role."""

    summary: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FinishedStage:
    """A stage that has been run, as its own `cost` and `questions` functions see it."""

    settings: Any
    context: RunContext
    summary: Numbers
    seed: int
    #: Paths by role; inputs that come from a stage whose output was deleted are missing.
    inputs: Mapping[str, Path]
    outputs: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Labels:
    """The ids of the questions whose gold labels a stage used: to train on, to choose data by, to judge steps with.

    Labels that only measure (test questions), or that only select a checkpoint (dev questions), are not counted.
    """

    answers: frozenset[str] = frozenset()
    #: Gold decompositions, or gold passages in their place.
    decompositions: frozenset[str] = frozenset()

    @classmethod
    def of(cls, questions: Iterable[str], *, answers: bool = True, decompositions: bool = False) -> "Labels":
        """These labels of all of these questions."""
        ids = frozenset(questions)
        return cls(ids if answers else frozenset(), ids if decompositions else frozenset())

    def __or__(self, other: "Labels") -> "Labels":
        return Labels(self.answers | other.answers, self.decompositions | other.decompositions)


def tree_questions(path: Path) -> list[str]:
    """Question ids of the trees in a file, in order. Nothing else of the trees is parsed."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [str(json.loads(line)["question"]["id"]) for line in file]


def sampled_questions(stage: FinishedStage, questions: Sequence[Question]) -> list[str]:
    """Ids of the questions that the settings of a stage chose from these."""
    settings = stage.settings
    chosen = sample_questions(questions, settings.questions, stage.seed, balance=settings.balance)
    return [question.id for question in chosen]


def _questions_of_trees(stage: FinishedStage) -> Iterable[str] | None:
    return tree_questions(stage.outputs[TREES]) if TREES in stage.outputs else None


def never(settings: Any) -> bool:  # noqa: ARG001
    """For `generates`: no text is generated."""
    return False


def no_questions(stage: FinishedStage) -> Iterable[str]:  # noqa: ARG001
    """For `questions`: none beyond those of the inputs."""
    return ()


def no_labels(stage: FinishedStage) -> Labels:  # noqa: ARG001
    """For `labels`: none beyond those of the inputs."""
    return Labels()


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One kind of stage. A module in `pipeline/stages` declares it as `STAGE`."""

    config: type[Config]
    #: (settings, context, task) -> result. The settings are an instance of `config`.
    run: Callable[[Any, RunContext, Task], StageResult]
    #: Roles it reads, except those that its settings leave unused, and roles it writes.
    inputs: tuple[str, ...] = (POLICY,)
    outputs: tuple[str, ...] = ()
    #: settings -> input roles that these settings do not need.
    unused_inputs: Callable[[Any], frozenset[str]] = lambda settings: frozenset()  # noqa: ARG005
    #: (settings, context): raises if the stage could not run. Called for all stages before the first one starts.
    check: Callable[[Any, RunContext], None] = lambda settings, context: None  # noqa: ARG005
    #: Whether it trains a model: of several processes all take part, in other stages the main one.
    trains: bool = False
    #: Whether `policy: oracle` is accepted, and `policy: server`: a stage that trains the policy cannot.
    accepts_oracle: bool = False
    accepts_server: bool = False
    #: Whether it compares its policy with the one that this was trained from: both are of stages of the run.
    compares: bool = False
    #: Settings that name a file or folder outside of the run: fingerprinted by content.
    external_files: tuple[str, ...] = ()
    #: Files in the stage's folder that stay valid under any settings, such as paid LLM responses.
    persistent_files: tuple[str, ...] = ()
    #: Settings that change the cost and not the result, such as a budget. Nested settings are named with a dot. The
    #: settings of `config.inert()` are not fingerprinted either.
    not_fingerprinted: frozenset[str] = frozenset()
    #: Increase it when the same settings give another result: finished stages are then recomputed.
    version: int = 1
    #: summary numbers -> headline and detail lines for tables; None prints nothing.
    summarize: Callable[[Numbers], StageSummary | None] = lambda numbers: None  # noqa: ARG005
    #: What it consumed.
    cost: Callable[[FinishedStage], StageCost] = cost_from_summary
    #: Ids of the questions that it used itself, beyond those of its inputs; None if unknown. By default those of the
    #: trees that it writes.
    questions: Callable[[FinishedStage], Iterable[str] | None] = _questions_of_trees
    #: The gold labels that it used itself, beyond those of its inputs; None if unknown.
    labels: Callable[[FinishedStage], Labels | None] = lambda stage: None  # noqa: ARG005
    #: settings -> whether a model generates text in this stage.
    generates: Callable[[Any], bool] = lambda settings: True  # noqa: ARG005
