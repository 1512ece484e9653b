"""What every trainer needs besides the model and its own settings, as one object."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from stepladder.agents.base import Agent
from stepladder.core.trace import Question, Tree
from stepladder.driver import OutcomeCallback
from stepladder.explore.episode import EpisodeConfig
from stepladder.explore.tree_store import read_trees
from stepladder.retrieval.base import Retriever

#: A file of search trees, or the trees.
Trees = str | PathLike[str] | Sequence[Tree]


def iter_trees(trees: Trees) -> Iterable[Tree]:
    """The search trees, read one at a time from a file."""
    return read_trees(Path(trees)) if isinstance(trees, str | PathLike) else trees


@dataclass(frozen=True, slots=True)
class TrainingContext:
    """The task, the output folder and the hardware of a training run."""

    agent: Agent
    #: Train questions.
    questions: Sequence[Question]
    #: Questions to evaluate checkpoints on, of the split `dev_split`.
    dev: Sequence[Question]
    retriever: Retriever | None
    #: Limits of an episode; trainers set its sampling.
    episode: EpisodeConfig
    #: Where to write. A folder belongs to one set of inputs: the same call resumes in it after a kill.
    folder: Path
    seed: int = 0
    device: str = "auto"
    #: Of the weights written at the end, fp32 or bf16; auto is that of the initial model's files.
    dtype: str = "auto"
    #: Episodes that are generated together.
    max_batch: int = 64
    #: Called with every finished episode and update; None shows progress.
    watch: OutcomeCallback | None = None
    #: Trackers, unless the settings of the trainer name others, and the project that they report to.
    report_to: tuple[str, ...] = ()
    project: str = "stepladder"
    #: The numbers of evaluations begin with it. Only those of `dev` select a checkpoint.
    dev_split: str = "dev"
