"""What all stages of a run share: agent, data, index, episode limits and engines, each opened on first use.

In: `SharedConfig`, the part of a recipe outside of its stages. Out: a `RunContext`. Paths are resolved against the
current folder and stored absolute, so that a run can be continued from elsewhere. Reading the settings runs no user
code: an agent file is only executed when `RunContext.agent` is first used.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ByteSize, Field, model_validator
from rich.console import Console

from stepladder import agents
from stepladder.agents import Agent, Play, is_agent_file, make_agent
from stepladder.agents.formats.play import Format
from stepladder.core.config import Config
from stepladder.core.errors import StepladderError
from stepladder.core.memory import set_cache_limit
from stepladder.core.requests import Sampling
from stepladder.core.step_scorer import StepScorer
from stepladder.core.trace import Question
from stepladder.data import DataSet
from stepladder.data.data_config import AbsolutePath, DataConfig, absolute_path
from stepladder.data.sampling import WARMUP
from stepladder.driver.cluster import RayConfig
from stepladder.engines import ENGINES, Engine, make_engine
from stepladder.engines.openai.server_config import ServerConfig
from stepladder.engines.spend.response_cache import CachedEngine
from stepladder.engines.vllm.settings import VLLM_ENGINES, VLLMConfig
from stepladder.explore.episode import EpisodeConfig
from stepladder.judges.base import ScorerOptions
from stepladder.judges.registry import make_scorer
from stepladder.models import absolute_if_folder
from stepladder.oracle.agent_check import check_agent
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.factory import SearchConfig, with_reranker
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.train.loop.context import TrainingContext
from stepladder.train.loop.trackers import ReportTo

if TYPE_CHECKING:
    from stepladder.driver.cluster.ray_cluster import RayCluster
    from stepladder.pipeline.stage import Task

#: In place of a policy: the recipe's initial one, the oracle (replays gold decompositions), the model of its server.
BASE, ORACLE, SERVER = "base", "oracle", "server"


def _known_agent(name: str) -> str:
    if is_agent_file(name):
        return str(absolute_path(Path(name)))
    return agents.AGENTS.checked(name)


def _engine_of_a_model(name: str) -> str:
    if name == ORACLE:  # it is a policy: `policy: oracle`
        raise ValueError(f"expected an engine that runs a model, found {name!r}")
    return ENGINES.checked(name)


class LimitConfig(Config):
    """Limits of an episode."""

    #: Steps per question; a search and its sub-answer are two steps.
    max_steps: int = Field(default=12, ge=1)
    #: Tokens per step.
    max_tokens: int = Field(default=256, ge=1)


class PromptingConfig(Config):
    """How the policy's text is read, what follows a slip or a limit, and the texts that it is prompted with."""

    #: strict: exactly the agent's format. lenient: the first complete action counts. constrained: decoding follows the
    #: agent's grammar. auto: strict for -brief agents and agent files, else lenient; lenient for all served agents.
    format: Literal["auto", "strict", "lenient", "constrained"] = "auto"
    #: Malformed steps per episode that are answered with a hint; null is 2, or 0 if the format is strict.
    max_format_errors: int | None = Field(default=None, ge=0)
    #: Ask once for the answer when an episode would end without one; null is true, or false if the format is strict.
    force_answer: bool | None = None
    #: Searches per episode; then the answer is due. null is no limit.
    max_searches: int | None = Field(default=None, ge=1)
    #: Lead a model that was not trained on the format: begin its turns for it (`<step>`, `Thought:`), or, constrained,
    #: leave out the thought before the only possible action. null is true, except for: strict; lenient behind a chat
    #: server; constrained with a -brief agent or an agent file.
    prime: bool | None = None
    #: A file that replaces the agent's prompt.
    prompt: AbsolutePath | None = None
    #: A file that replaces the agent's hint after a malformed step.
    hint: AbsolutePath | None = None
    #: Variables of the chat template, such as {enable_thinking: false}.
    chat_options: dict[str, Any] = Field(default_factory=dict)

    def play(self, agent: str, *, prompted: bool | None = None, remote: bool | None = None) -> Play:
        """The rules for an agent. `prompted`: of the format auto, lenient (a server) or strict (the oracle).

        `remote`: whether the policy is behind a chat server; by default if it is certainly prompted.
        """
        built_in = not is_agent_file(agent)
        lenient = built_in and (not agent.endswith("-brief") if prompted is None else prompted)
        name = ("lenient" if lenient else "strict") if self.format == "auto" else self.format
        led = {
            "strict": False,
            "lenient": not (bool(prompted) if remote is None else remote),
            "constrained": built_in and not agent.endswith("-brief"),
        }
        given = {
            "max_format_errors": self.max_format_errors,
            "force_answer": self.force_answer,
            "prime": led[name] if self.prime is None else self.prime,
        }
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return replace(Play.of(name), max_searches=self.max_searches, **changes)


class SharedConfig(Config):
    """Settings shared by all stages of a run."""

    renamed: ClassVar[dict[str, str]] = {"batch": "batch_size"}

    #: The initial policy: a built-in name, a model folder or a hub name.
    policy: Annotated[str, Field(min_length=1), AfterValidator(absolute_if_folder)] = "nano"
    #: A built-in agent, or a Python file with your own.
    agent: Annotated[str, AfterValidator(_known_agent)] = "prorag"
    prompting: PromptingConfig = PromptingConfig()
    data: DataConfig = DataConfig()
    search: SearchConfig = SearchConfig()
    episode: LimitConfig = LimitConfig()
    #: Generation backend of a policy. openai: `policy` is the name of a model behind `server`, which stages can play
    #: and not train.
    engine: Annotated[str, AfterValidator(_engine_of_a_model)] = "transformers"
    #: How vLLM loads a model, with engine: vllm.
    vllm: VLLMConfig = VLLMConfig()
    #: A model behind OpenAI-compatible servers. Stages with `policy: server` are played by it.
    server: ServerConfig | None = None
    device: str = "auto"
    dtype: Literal["auto", "fp32", "bf16"] = "auto"
    #: Largest generation batch of a local model.
    batch_size: int = Field(default=64, ge=1)
    #: Main memory of all caches together, such as 2GB; null is an eighth of the free memory, at most 4 GiB.
    memory: ByteSize | None = None
    #: A Ray cluster whose workers play the questions of explore, rank, eval and others; null is this process.
    ray: RayConfig | None = None
    #: Experiment trackers of all training stages: tensorboard, wandb, trackio, mlflow. A stage may name its own.
    report_to: ReportTo = ()

    @model_validator(mode="after")
    def _server_is_given(self) -> "SharedConfig":
        if self.engine == "openai" and self.server is None:
            raise ValueError("engine: openai needs the server: server.base_url, or `server: {}` for OpenAI's own")
        if self.server is not None and self.server.model is None and self.engine != "openai":
            raise ValueError("the server needs the name of its model: server.model")
        return self

    @model_validator(mode="after")
    def _vllm_is_used(self) -> "SharedConfig":
        if self.vllm != VLLMConfig() and self.engine not in VLLM_ENGINES:
            raise ValueError(f"the settings of vllm have no effect with engine: {self.engine}; set engine: vllm")
        return self

    def plain(self) -> dict[str, Any]:
        """Plain data with every value, except default prompting and vLLM settings, no server and no cluster."""
        unset = {"prompting": PromptingConfig(), "server": None, "ray": None, "vllm": VLLMConfig()}
        left_out = {name for name, each in unset.items() if getattr(self, name) == each}
        return self.model_dump(mode="json", exclude=left_out)

    @property
    def served_model(self) -> str:
        """The name of the model on the server."""
        return (self.server.model if self.server is not None else None) or self.policy


def paid_by(engine: Engine | None) -> dict[str, Any]:
    """What a paid policy has spent, for the summary of a stage; empty if it is free."""
    return {"policy_spend": asdict(engine.spend())} if isinstance(engine, CachedEngine) else {}


class RunContext:
    """The shared resources of a run. `console` receives notices of the stages."""

    def __init__(
        self,
        settings: SharedConfig,
        console: Console | None = None,
        *,
        prompted: bool | None = None,
        remote: bool | None = None,
    ) -> None:
        """`prompted`: whether the policy is certainly a prompted model, or certainly none (the oracle). `remote`:
        whether it is behind a chat server, by default if it is certainly prompted.
        """
        self.settings = settings
        self.prompted = prompted, remote
        self.console = console or Console(stderr=True)
        self._announced: set[str] = set()
        #: The Ray cluster of the settings, once it is needed (pipeline/workers).
        self.cluster: RayCluster | None = None
        set_cache_limit(settings.memory)

    @cached_property
    def agent(self) -> Agent:
        """The agent. An agent file is executed here, if the user named or trusted it (`agents/agent_trust.py`)."""
        settings, prompting = self.settings, self.settings.prompting
        play = prompting.play(settings.agent, prompted=self.prompted[0], remote=self.prompted[1])
        return make_agent(settings.agent, check_agent, play=play, prompt=prompting.prompt, hint=prompting.hint)

    def agent_of(self, policy: str) -> Agent:
        """The agent as a policy plays it: a model behind a server is prompted, whatever the agent."""
        if policy != SERVER or self.prompted[0] is not None:
            return self.agent
        return self.agent.playing(self.settings.prompting.play(self.settings.agent, prompted=True))

    @cached_property
    def data(self) -> DataSet:
        """Questions by split."""
        return self.settings.data.open()

    @cached_property
    def retriever(self) -> Retriever | None:
        """The given index, or one over the data set's own passages; None if the agent does not search."""
        self.check_index()
        if not self.agent.searches:
            return None
        search = self.settings.search
        if self.settings.data.index is not None:
            return search.open(self.settings.data.index)
        return with_reranker(BM25Index.from_passages(self.data.passages or ()), search.rerank, search.device)

    def close(self) -> None:
        """Close the index and the cluster if they were opened; pending requests to a server are dropped."""
        for name in ("retriever", "cluster"):
            if (opened := self.__dict__.pop(name, None)) is not None:
                opened.close()
        self.cluster = None

    def check_index(self) -> None:
        """Raise if the agent searches and there is no index."""
        if self.agent.searches and self.settings.data.index is None and self.data.passages is None:
            raise StepladderError(
                f"the agent '{self.agent.name}' searches, but there is no index: add --index DIR (or a server URL), in "
                "a recipe data.index (`stepladder index build CORPUS --out DIR` builds one)"
            )

    def check_server(self) -> None:
        """Raise if the recipe's server has a budget in dollars and its model no price."""
        if self.settings.server is not None:
            self.settings.server.check(self.settings.served_model)

    def check_decoding(self, *, trains: bool) -> None:
        """Raise if a model in process is to be constrained, or trained so, and the library for that is missing."""
        if self.agent.play.format is Format.CONSTRAINED and (trains or self.settings.engine == "transformers"):
            from stepladder.engines.transformers.constrained import import_llguidance

            import_llguidance()

    def expect_answers(self, split: str) -> None:
        """Raise if no question of a split has an answer, or the agent searches and there is no index."""
        if not any(question.answers for question in self.split(split)):
            raise StepladderError(f"no question of the split '{split}' has an answer: rewards cannot be computed")
        self.check_index()

    def expect_dev(self, stage: str, questions: int, split: str = "dev") -> None:
        """Raise if a stage needs dev questions and the data has no dev split."""
        if questions and split not in self.data.questions:
            needs = f"{stage} evaluates checkpoints on {questions} {split} questions, but the data has no {split} split"
            raise StepladderError(f"{needs}: give one (--{split}, in a recipe data.{split}), or set dev_questions to 0")

    def split(self, name: str) -> tuple[Question, ...]:
        """The questions of one split. Skipped records are reported once."""
        questions = self.data.split(name)
        for reason, count in self.data.skipped(name).items() if name not in self._announced else ():
            self.console.print(f"{self.data.name} {name}: skipped {count:,} {reason}", highlight=False, markup=False)
        self._announced.add(name)
        return questions

    def sft_questions(self) -> tuple[Question, ...]:
        """The questions whose demonstrations `sft` may train on."""
        return self.split(WARMUP if self.settings.data.warmup else "train")

    def all_questions(self) -> list[Question]:
        """Questions of all splits."""
        return [question for split in self.data.questions.values() for question in split]

    def episode(self, temperature: float = 0.0, top_p: float = 1.0) -> EpisodeConfig:
        """Episode limits with these sampling parameters."""
        limits = self.settings.episode
        try:
            sampling = Sampling(temperature, top_p, limits.max_tokens)
            return EpisodeConfig(limits.max_steps, self.settings.search.k, sampling)
        except ValueError as error:
            raise StepladderError(str(error)) from error

    def training(
        self, task: "Task", questions: Sequence[Question] | None = None, *, dev: str | None = None, search: bool = True
    ) -> TrainingContext:
        """For a trainer: `questions`, by default the train split; the split `dev` for evaluations; an index or none."""
        shared = self.settings
        return TrainingContext(
            self.agent,
            self.split("train") if questions is None else questions,
            self.split(dev) if dev else (),
            self.retriever if search else None,
            self.episode(),
            task.folder,
            task.seed,
            shared.device,
            shared.dtype,
            shared.batch_size,
            report_to=shared.report_to,
            project=task.folder.absolute().parent.name,
            dev_split=dev or "dev",
        )

    def scorer(self, name: str, reward: str | None, **options: Any) -> StepScorer:
        """A step scorer. `reward` is the folder of the reward model, for `prm`; `options` are of `ScorerOptions`."""
        return make_scorer(name, ScorerOptions(reward, self.settings.device, self.settings.dtype, **options))

    @contextmanager
    def engine(
        self, policy: str | None, name: str | None = None, *, folder: Path | None = None, **options: Any
    ) -> Iterator[Engine]:
        """The generation engine of a policy, closed on exit; by default the engine of the settings.

        `folder`: where the replies and the spend of a paid server are kept. `options` are of `make_engine`, beyond
        those in the settings.
        """
        shared, chat_options = self.settings, self.settings.prompting.chat_options
        if policy == SERVER:
            policy, name = shared.served_model, "openai"
        elif policy == ORACLE:
            policy, name = None, ORACLE
        name = name or ("transformers" if shared.engine == "openai" else shared.engine)
        if name == "openai" and policy is not None:
            made = (shared.server or ServerConfig()).open(policy, folder, chat_options)
        else:
            common: dict[str, Any] = {"device": shared.device, "dtype": shared.dtype, "max_batch": shared.batch_size}
            if chat_options:
                common["chat_options"] = chat_options
            if name in VLLM_ENGINES:
                common["vllm"] = shared.vllm.model_dump()
            made = make_engine(name, self.agent, model=policy, **common, **options)
        with closing(made) as engine:
            yield engine
