"""Base of the public trainers `SFTTrainer`, `RFTTrainer`, `PRMTrainer`, `DPOTrainer` and `GRPOTrainer`.

In: a policy, an agent, data and settings, as names or as objects. Out: `train()` resolves the names, trains exactly as
the stage of a recipe does, and returns its report.
"""

import os
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from stepladder.agents import Agent, make_agent, name_agent
from stepladder.core.errors import StepladderError
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Question
from stepladder.data import DataSet, load_dataset
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.base import ScorerOptions
from stepladder.judges.registry import make_scorer
from stepladder.models.devices import pick_device
from stepladder.oracle.agent_check import check_agent
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.factory import load_retriever
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.launch.processes import Processes, lost_processes
from stepladder.train.loop.config import TrainingConfig
from stepladder.train.loop.context import TrainingContext

SomeConfig = TypeVar("SomeConfig", bound=TrainingConfig)
Report = TypeVar("Report")


@dataclass
class PublicTrainer(ABC, Generic[SomeConfig, Report]):
    """Trains a policy. Subclasses name their settings and call their `train_*` function."""

    #: A built-in name, a hub name or a model folder.
    policy: str | os.PathLike[str]
    agent: str | os.PathLike[str] | Agent = "prorag"
    data: str | os.PathLike[str] | DataSet = "atlas"
    #: Settings; None is the defaults.
    args: SomeConfig | None = None
    #: Output folder; the same call resumes in it after a kill. None is a new folder in ./runs.
    output_dir: str | os.PathLike[str] | None = None
    #: An index folder, the URL of a search server or a retriever; None searches the passages of the data.
    retriever: str | os.PathLike[str] | Retriever | None = None
    episode: EpisodeConfig = EpisodeConfig()
    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"

    kind: ClassVar[str]
    config_class: ClassVar[type[TrainingConfig]]

    def train(self) -> Report:
        """Train, and return the report: the folder of the model, and metrics."""
        with ExitStack() as stack, lost_processes():
            return self._train(os.fspath(self.policy), self._context(stack), self._config)

    @abstractmethod
    def _train(self, policy: str, context: TrainingContext, config: SomeConfig) -> Report:
        """Call the `train_*` function."""

    def _questions(self, data: DataSet) -> tuple[Question, ...]:
        """The questions of the training context."""
        return data.split("train")

    @property
    def _config(self) -> SomeConfig:
        return self.args if self.args is not None else self.config_class()  # type: ignore[return-value]

    def _context(self, stack: ExitStack) -> TrainingContext:
        if self.output_dir is None:
            self.output_dir = Processes(pick_device(self.device)).from_main(_new_folder(self.kind))
        if isinstance(self.agent, Agent):
            agent = self.agent
        else:
            name_agent(self.agent)
            agent = make_agent(os.fspath(self.agent), check_agent)
        data = self.data if isinstance(self.data, DataSet) else load_dataset(os.fspath(self.data))
        dev_questions = getattr(self._config, "dev_questions", 0)
        split = getattr(self._config, "eval_split", "dev")
        if dev_questions and split not in data.questions:
            raise StepladderError(
                f"dev_questions is {dev_questions}, and {data.name} has no {split} split: set it to 0"
            )
        return TrainingContext(
            agent,
            self._questions(data),
            data.split(split) if dev_questions else (),
            self._open_retriever(agent, data, stack),
            self.episode,
            Path(self.output_dir),
            self.seed,
            self.device,
            self.dtype,
            dev_split=split,
        )

    def _open_retriever(self, agent: Agent, data: DataSet, stack: ExitStack) -> Retriever | None:
        if isinstance(self.retriever, Retriever):
            return self.retriever
        if not agent.searches:
            return None
        if self.retriever is None and data.passages is None:
            raise StepladderError(f"the agent '{agent.name}' searches, and {data.name} has no passages: set retriever")
        opened = (
            BM25Index.from_passages(data.passages or ())
            if self.retriever is None
            else load_retriever(os.fspath(self.retriever))
        )
        stack.callback(opened.close)
        return opened

    def _open_scorer(
        self, scorer: str | os.PathLike[str] | StepScorer | None, name: str = "prm", **options: Any
    ) -> StepScorer:
        """A step scorer, from the folder of a PRM if that is what was given; `options` are of `ScorerOptions`."""
        if isinstance(scorer, StepScorer):
            return scorer
        folder = None if scorer is None else os.fspath(scorer)
        return make_scorer(name, ScorerOptions(folder, self.device, self.dtype, **options))


def all_questions(data: DataSet) -> tuple[Question, ...]:
    """The questions of all splits."""
    return tuple(question for split in data.questions.values() for question in split)


def _new_folder(kind: str) -> Path:
    names = (f"runs/{kind}" if number == 1 else f"runs/{kind}-{number}" for number in count(1))
    return next(path for path in map(Path, names) if not path.exists())
