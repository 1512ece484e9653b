"""The context: what all stages of a run share, opened when it is first needed, and once.

In: `SharedConfig`, what a recipe says outside of its stages. Out: the agent, the data, the index, limits, engines.
Paths are taken from where the command is typed and kept absolute, so that a run can be used from elsewhere.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from rich.console import Console

from stepladder.agents import Agent, is_agent_file, make_agent
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.requests import Sampling
from stepladder.core.trace import Question
from stepladder.data import DATA_SETS, PUBLISHED, SPLITS, DataSet, absolute_name, open_data, open_files
from stepladder.data.holdout import WARMUP, held_out, with_warmup
from stepladder.engines import Engine, make_engine
from stepladder.explore.episode import EpisodeConfig
from stepladder.models import absolute_if_folder
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.factory import absolute_unless_url, open_retriever, reranked
from stepladder.retrieval.index.bm25 import BM25Index

#: In place of a policy: the one the recipe begins with, and the oracle that plays gold decompositions.
BASE, GOLD = "base", "gold"


def _absolute(path: Path) -> Path:
    return expand_path(path).absolute()


def _known_agent(name: str) -> str:
    make_agent(name)
    return str(_absolute(Path(name))) if is_agent_file(name) else name


def _absolute_data(name: str | None) -> str | None:
    return name if name is None else absolute_name(name)


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


class DataConfig(Config):
    """Questions and corpus: a data set by `name`, or question files by split; an index where no corpus comes along."""

    #: A data set, a folder of question files, a question file, which has the one split `all`; or several joined by +.
    name: Annotated[str | None, AfterValidator(_absolute_data)] = "atlas"
    #: Seed of the Atlas world.
    world_seed: int = 0
    train: AbsolutePath | None = None
    dev: AbsolutePath | None = None
    test: AbsolutePath | None = None
    #: So many train questions are set aside as `dev`, to choose checkpoints by; what was `dev` is the `test` then,
    #: unless there is one, and where there is neither, as many again are set aside as `test`.
    holdout: int = Field(default=0, ge=0)
    #: So many of the train questions that are left are for the warm-up (`sft`) alone: what a policy was shown how to
    #: solve is not what it plays in other stages, which have the rest.
    warmup: int = Field(default=0, ge=0)
    #: Folder of an index, or URLs of search servers, instead of an index of the data set's own passages.
    index: Annotated[str, Field(min_length=1), AfterValidator(absolute_unless_url)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _files_have_no_name(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if not any(data.get(split) for split in SPLITS):
            if "name" in data and data["name"] is None:
                known = ", ".join((*DATA_SETS, *PUBLISHED))
                raise ValueError(f"expected a name ({known}, a folder, a question file) or files by split")
            return data
        if data.get("name") is not None:
            raise ValueError(f"found both the name {data['name']!r} and files by split; leave out one of them")
        return {**data, "name": None}

    @property
    def files(self) -> dict[str, Path]:
        """The question files that were given, by split."""
        return {split: path for split in SPLITS if (path := getattr(self, split)) is not None}

    def open(self) -> DataSet:
        """The questions, with the passages that come with them."""
        name = self.name
        data = open_files("the data", self.files) if name is None else open_data(name, seed=self.world_seed)
        data = held_out(data, self.holdout) if self.holdout else data
        return with_warmup(data, self.warmup) if self.warmup else data


class SearchConfig(Config):
    """How a query is answered."""

    #: Passages a search returns.
    k: int = Field(default=3, ge=1)
    #: A cross-encoder (a folder or a hub name) that puts what is found in order anew.
    rerank: Annotated[str, AfterValidator(absolute_if_folder)] | None = None
    #: Where queries are encoded. A GPU is left to the models that are trained, unless told otherwise.
    device: str = "cpu"


class LimitConfig(Config):
    """Where an episode ends at the latest."""

    #: Most steps a question; a search and its sub-answer are two.
    max_steps: int = Field(default=12, ge=1)
    #: Most tokens a step.
    max_tokens: int = Field(default=256, ge=1)


class SharedConfig(Config):
    """What all stages of a run share."""

    #: The model to begin with: a built-in name, a model folder or a hub name.
    policy: Annotated[str, Field(min_length=1), AfterValidator(absolute_if_folder)] = "nano"
    #: One that comes along, or a Python file with one of your own.
    agent: Annotated[str, AfterValidator(_known_agent)] = "prorag"
    data: DataConfig = DataConfig()
    search: SearchConfig = SearchConfig()
    episode: LimitConfig = LimitConfig()
    #: What plays a policy: transformers, or vLLM where it is installed.
    engine: Literal["transformers", "vllm"] = "transformers"
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    #: Most questions in one batch of a local model that is played.
    batch: int = Field(default=64, ge=1)


class RunContext:
    """Opens what the settings name. `console` is where stages may tell what they do."""

    def __init__(self, settings: SharedConfig, console: Console | None = None) -> None:
        self.settings = settings
        self.console = console or Console(stderr=True)
        self._told: set[str] = set()

    @cached_property
    def agent(self) -> Agent:
        """How questions are worked on."""
        return make_agent(self.settings.agent)

    @cached_property
    def data(self) -> DataSet:
        """The questions by split."""
        return self.settings.data.open()

    @cached_property
    def retriever(self) -> Retriever | None:
        """The index that was asked for, or one of the data set's own passages; None for an agent without searches."""
        self.check_index()
        if not self.agent.searches:
            return None
        search = self.settings.search
        if self.settings.data.index is not None:
            return open_retriever(self.settings.data.index, device=search.device, rerank=search.rerank)
        return reranked(BM25Index.from_passages(self.data.passages or ()), search.rerank, search.device)

    def close(self) -> None:
        """Let go of the index, if it was opened; what waits for a server is given up."""
        if (opened := self.__dict__.pop("retriever", None)) is not None:
            opened.close()

    def check_index(self) -> None:
        """Raise where the agent searches and there is nothing to search."""
        if self.agent.searches and self.settings.data.index is None and self.data.passages is None:
            raise StepladderError(
                f"the agent '{self.agent.name}' searches, and no index was given: add --index DIR (or the URL of a "
                "server), in a recipe data.index (`stepladder index build CORPUS --out DIR` makes one)"
            )

    def split(self, name: str) -> tuple[Question, ...]:
        """The questions of one split; what the files have and is left out is told once."""
        questions = self.data.split(name)
        for reason, count in self.data.left_out(name).items() if name not in self._told else ():
            self.console.print(f"{self.data.name} {name}: left out {count:,} {reason}", highlight=False, markup=False)
        self._told.add(name)
        return questions

    def shown(self) -> tuple[Question, ...]:
        """The questions that a warm-up may be shown how to solve."""
        return self.split(WARMUP if self.settings.data.warmup else "train")

    def all_questions(self) -> list[Question]:
        """The questions of all splits."""
        return [question for split in self.data.questions.values() for question in split]

    def episode(self, temperature: float = 0.0, top_p: float = 1.0) -> EpisodeConfig:
        """The limits of an episode, with this sampling."""
        limits = self.settings.episode
        try:
            sampling = Sampling(temperature, top_p, limits.max_tokens)
            return EpisodeConfig(limits.max_steps, self.settings.search.k, sampling)
        except ValueError as error:
            raise StepladderError(str(error)) from error

    @contextmanager
    def engine(self, policy: str) -> Iterator[Engine]:
        """The engine that plays a policy, closed in the end."""
        shared = self.settings
        engine = (
            make_engine("gold", self.agent)
            if policy == GOLD
            else make_engine(
                shared.engine,
                self.agent,
                model=policy,
                device=shared.device,
                dtype=shared.dtype,
                max_batch=shared.batch,
            )
        )
        try:
            yield engine
        finally:
            engine.close()
