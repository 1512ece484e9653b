"""Options of the commands that run an agent (`ask`, `eval`, `serve-agent`), and the agent that they describe.

In: option groups as typed, and a run. Out: an `AgentSetup` with settings, engine name, model and guide, which opens the
driver.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stepladder.agents import is_agent_file
from stepladder.cli.declarations import ERR, OptionGroup, given, number_option, option, path_of, say
from stepladder.cli.options import (
    AgentName,
    Api,
    ApiName,
    BaseUrl,
    BatchSize,
    Concurrency,
    DataName,
    Device,
    DType,
    EngineName,
    IndexName,
    MaxSteps,
    MaxTokens,
    ModelName,
    SharedTopK,
    SharedWorldSeed,
)
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question, Trajectory
from stepladder.driver import Driver
from stepladder.engines import make_engine
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.explore.guided import guided_search
from stepladder.models import builtin_folder
from stepladder.models.adapters import agent_of
from stepladder.pipeline.fingerprint import agent_content
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.recipe import with_value
from stepladder.pipeline.resources import ORACLE, RunContext, SharedConfig
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import POLICY, REWARD


@dataclass(frozen=True, slots=True)
class AgentOptions(OptionGroup):
    """Agent, model, data and limits. None: take it from the run, or else the default."""

    panel = "Agent, model and data"

    agent: AgentName = None
    engine: EngineName = None
    model: ModelName = None
    base_url: BaseUrl = None
    api: ApiName = Api.chat
    device: Device = None
    dtype: DType = None
    batch_size: BatchSize = None
    concurrency: Concurrency = 32
    data: DataName = None
    index: IndexName = None
    topk: SharedTopK = None
    max_steps: MaxSteps = None
    max_tokens: MaxTokens = None
    world_seed: SharedWorldSeed = None


@dataclass(frozen=True, slots=True)
class SamplingOptions(OptionGroup):
    """Sampling and guided inference: sample several candidates and choose."""

    panel = "Sampling and guided inference"

    temperature: Annotated[
        float | None, number_option("--temperature", "0 is greedy.", default="0; 1 with --guide", min=0.0)
    ] = None
    top_p: Annotated[float, number_option("--top-p", "Nucleus sampling.", min=0.0, max=1.0)] = 1.0
    guide: Annotated[
        str | None,
        option(
            "--guide",
            "NAME",
            "Sample several candidates and choose by: prm (the run's newest reward model), a reward model folder, "
            "gold (the gold judge) or vote (the most common answer).",
        ),
    ] = None
    n: Annotated[
        int | None, number_option("--n", "With --guide: candidates per step or per question.", default="8", min=1)
    ] = None
    strategy: Annotated[
        str | None,
        option("--strategy", "NAME", "With --guide: actions, beam, trajectories or mcts.", default="actions"),
    ] = None
    aggregate: Annotated[
        str | None,
        option(
            "--aggregate",
            "NAME",
            "With --strategy beam or trajectories: min, mean or last of the step scores.",
            default="min",
        ),
    ] = None
    weighted: Annotated[
        bool, typer.Option("--weighted", help="With --guide: multiply each score by the number of equal candidates.")
    ] = False
    beams: Annotated[int | None, number_option("--beams", "With --strategy beam: beam width.", default="2", min=1)] = (
        None
    )
    simulations: Annotated[
        int | None,
        number_option("--simulations", "With --strategy mcts: simulations per question.", default="32", min=1),
    ] = None

    def guide_config(self) -> GuideConfig | None:
        """Settings of the guide; None without --guide."""
        typed = given(
            n=self.n,
            strategy=self.strategy,
            aggregate=self.aggregate,
            weighted=self.weighted or None,
            beams=self.beams,
            simulations=self.simulations,
        )
        if self.guide is None:
            if typed:
                raise StepladderError(f"--{next(iter(typed))} needs --guide prm, gold, vote or FOLDER")
            return None
        if self.temperature == 0:
            raise StepladderError("--temperature 0 makes all candidates equal: with --guide it must be above 0")
        by = self.guide if self.guide in ("gold", "vote") else "prm"
        sampling = given(temperature=self.temperature, top_p=self.top_p)
        return GuideConfig.read({"by": by, **typed, **sampling}, "--guide")

    def reward_model(self, run: Path | None) -> str | None:
        """The folder of the reward model that --guide names; None if it names none."""
        if self.guide in (None, "gold", "vote"):
            return None
        if self.guide != "prm":
            folder = builtin_folder(self.guide) or path_of(self.guide)
            if not (folder / "config.json").is_file():
                raise StepladderError(f"--guide {self.guide}: expected prm, gold, vote or a reward model folder")
            return str(folder)
        if run is None:
            raise StepladderError("--guide prm uses the reward model of a run: add --run DIR, or give --guide FOLDER")
        found = RunFolder.open(run).newest(REWARD)
        if found is None:
            raise StepladderError(f"the run {run} has no reward model: `stepladder train prm --run {run}` trains one")
        return str(found)


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """An agent as the options describe it: what to open, and with which settings."""

    options: AgentOptions
    context: RunContext
    engine: str
    model: str | None
    episode: EpisodeConfig
    guide: GuideConfig | None
    #: Folder of the reward model, if the guide uses one.
    reward: str | None

    @classmethod
    def from_options(cls, run: Path | None, options: AgentOptions, sampling: SamplingOptions) -> "AgentSetup":
        """Resolve what was typed. Opens nothing yet."""
        context = RunContext(_shared_config(run, options))
        guide = sampling.guide_config()
        temperature = guide.temperature if guide is not None else sampling.temperature or 0.0
        limits = context.episode(temperature, sampling.top_p)
        engine, model = _engine_and_model(run, options)
        return cls(options, context, engine, model, limits, guide, sampling.reward_model(run))

    def answer(self, question: Question, seed: int, limits: EpisodeConfig | None = None) -> Algorithm[Trajectory]:
        """The algorithm that answers a question: one episode, or a guided search."""
        limits = limits or self.episode
        if self.guide is None:
            return episode(self.context.agent, question, limits, seed)
        return guided_search(self.context.agent, question, limits, self.guide.guide(), seed)

    @property
    def streams(self) -> bool:
        """Whether steps can be shown as they are made: other strategies choose among trajectories at the end."""
        return self.guide is None or self.guide.guide().strategy == "actions"

    @contextmanager
    def driver(self, in_flight: int | None = None) -> Iterator[Driver]:
        """A driver with retriever, engine and step scorer, all closed at the end."""
        shared, options = self.context.settings, self.options
        with closing(self.context):
            retriever = self.context.retriever
            engine = make_engine(
                self.engine,
                self.context.agent,
                model=self.model,
                base_url=options.base_url,
                api=options.api.value,
                device=shared.device,
                dtype=shared.dtype,
                max_batch=shared.batch_size,
                concurrency=options.concurrency,
            )
            scoring = self.guide.scorer(self.reward, shared.device, shared.dtype) if self.guide else nullcontext()
            with closing(engine), scoring as scorer:
                yield Driver(engine, retriever, scorer, **given(in_flight=in_flight))


def _shared_config(run: Path | None, options: AgentOptions) -> SharedConfig:
    """The shared settings of a run, or the defaults, with those that were typed.

    Without a run and --agent, an adapter that names the agent it was trained with sets the agent.
    """
    plain: object = {}
    if run is not None:
        folder = RunFolder.open(run)
        plain = folder.recipe().shared.model_dump()
        if options.agent is None:
            _check_agent_unchanged(folder)
    elif options.model is not None and (trained_as := agent_of(expand_path(options.model))) is not None:
        plain = {"agent": trained_as}
    if options.data is not None:  # replaces the question files of the run
        for key in ("train", "dev", "test"):
            plain = with_value(plain, ["data", key], None)
        for key in ("holdout", "warmup"):
            plain = with_value(plain, ["data", key], 0)
    typed = {
        "agent": options.agent,
        "data.name": options.data,
        "data.world_seed": options.world_seed,
        "data.index": options.index,
        "search.k": options.topk,
        "episode.max_steps": options.max_steps,
        "episode.max_tokens": options.max_tokens,
        "device": options.device,
        "dtype": options.dtype,
        "batch_size": options.batch_size,
    }
    for name, value in typed.items():
        if value is not None:
            plain = with_value(plain, name.split("."), value)
    return SharedConfig.read(plain)


def _check_agent_unchanged(run: RunFolder) -> None:
    """Raise if the agent file has changed since the run's stages used it."""
    agent = run.recipe().shared.agent
    records = [record for name in run.stage_names() if (record := run.known(name)) is not None]
    if is_agent_file(agent) and any(record.ingredients.get("agent") != agent_content(agent) for record in records):
        raise StepladderError(
            f"the agent file {agent} has changed since the run {run.path} used it: restore it, or add --agent {agent} "
            "to use it as it is now"
        )


def _engine_and_model(run: Path | None, options: AgentOptions) -> tuple[str, str | None]:
    """What was typed, or the newest policy of a run, openai for a URL, else the oracle."""
    engine, model = options.engine, options.model
    if engine is None and options.base_url is not None:
        engine = "openai"
    if run is not None and model is None and engine in (None, "transformers", "vllm"):
        policy = RunFolder.open(run).newest(POLICY)
        if policy is None:
            raise StepladderError(f"the run {run} has no policy yet: finish a training stage, or give a --model")
        model = str(policy)
    if engine is None and model is None:
        say("[dim]No model given: using the oracle, which sees the gold answers (an upper bound)[/]", ERR)
    return engine or ("transformers" if model else ORACLE), model
