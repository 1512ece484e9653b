"""Options of the commands that run an agent (`ask`, `eval`, `serve-agent`), and the agent that they describe.

In: option groups as typed, and a run. Out: an `AgentSetup` with settings, engine name, model and guide, which opens the
driver.
"""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.declarations import ERR, OptionGroup, Typed, given, listed, option, say
from stepladder.cli.options import (
    DEFAULTS,
    MODELS_HELP,
    AgentName,
    Api,
    BaseURL,
    Concurrency,
    DataName,
    FormatName,
    GrammarKind,
    HintFile,
    IndexName,
    PolicyBudget,
    Prices,
    PromptFile,
    SharedTopK,
    SharedWorldSeed,
    Timeout,
    TrustAgent,
)
from stepladder.cli.recipes import output_of
from stepladder.cli.usage_errors import reject_renamed
from stepladder.core.errors import StepladderError, nearest
from stepladder.core.io.files import expand_path
from stepladder.core.requests import Algorithm
from stepladder.core.trace import Question, Trajectory
from stepladder.core.trace_printer import printable
from stepladder.driver import Driver
from stepladder.engines import ENGINES
from stepladder.engines.vllm.settings import VLLM_ENGINES
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.explore.guided import guided_search
from stepladder.models import builtin_folder
from stepladder.pipeline.agent_config import agent_config
from stepladder.pipeline.guide_config import GuideConfig
from stepladder.pipeline.policy_choice import PolicyChoice, choose_policy
from stepladder.pipeline.resources import ORACLE, RunContext
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import REWARD
from stepladder.pipeline.workers.rollout_workers import open_driver

_LIMITS = DEFAULTS.episode
_VLLM_OPTIONS = ("max_model_len", "tensor_parallel_size", "gpu_memory_utilization")
_SERVER_OPTIONS = ("base_url", "api", "concurrency", "timeout", "grammar", "policy_budget", "prices")
PolicyStage = Annotated[
    str | None, option("NAME", "With --run: the stage whose policy is used.", "the best on dev questions")
]


@dataclass(frozen=True, slots=True)
class AgentOptions(OptionGroup):
    """Agent, model, data and limits. None: take it from the run, or else the default."""

    panel = "Agent, model and data"

    agent: AgentName = None
    trust_agent: TrustAgent = None
    format: FormatName = None
    max_format_errors: Annotated[
        int | None, option("N", "Malformed steps that are answered with a hint.", "2; 0 if strict", min=0)
    ] = None
    force_answer: Annotated[
        bool | None,
        typer.Option(
            "--force-answer/--no-force-answer",
            help="Ask once for the answer where an episode would end without one. (default: on, off if strict)",
        ),
    ] = None
    max_searches: Annotated[int | None, option("N", "Maximum searches; then the answer is due.", "none", min=1)] = None
    prime: Annotated[
        bool | None,
        typer.Option(
            "--prime/--no-prime",
            help="Begin the model's turns for it, as in <step>. (default: on; off if strict or with --base-url)",
        ),
    ] = None
    prompt: PromptFile = None
    hint: HintFile = None
    chat_options: Annotated[
        str | None, option("JSON", "Variables of the chat template: '{\"enable_thinking\": false}'.", "none")
    ] = None
    engine: Annotated[
        str | None,
        option(
            "NAME",
            f"Generation backend: {listed(ENGINES)}. `oracle` replays gold decompositions (an upper bound).",
            "transformers with --model or --run, openai with --base-url, else oracle",
            callback=reject_renamed,
        ),
    ] = None
    model: Annotated[
        str | None,
        option(
            "NAME",
            f"{MODELS_HELP[0].upper()}{MODELS_HELP[1:]}; with --base-url, the server's model name.",
            "the policy of --run",
        ),
    ] = None
    stage: PolicyStage = None
    base_url: BaseURL = None
    api: Api = None
    policy_budget: PolicyBudget = None
    prices: Prices = None
    device: Annotated[str | None, option("NAME", "auto, cpu, cuda or cuda:N.", DEFAULTS.device)] = None
    dtype: Annotated[str | None, option("NAME", "auto, fp32 or bf16.", DEFAULTS.dtype)] = None
    batch_size: Annotated[
        int | None, option("N", "Maximum batch size of a local model.", DEFAULTS.batch_size, min=1)
    ] = None
    memory: Annotated[
        str | None,
        option("SIZE", "Main memory of all caches together, such as 2GB.", "1/8 of the free memory, at most 4 GiB"),
    ] = None
    max_model_len: Annotated[
        int | None, option("N", "With vLLM: tokens of the longest transcript.", "the model's context length", min=2)
    ] = None
    tensor_parallel_size: Annotated[
        int | None, option("N", "With vLLM: GPUs that share a model.", DEFAULTS.vllm.tensor_parallel_size, min=1)
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        option("SHARE", "With vLLM: share of the GPU memory.", DEFAULTS.vllm.gpu_memory_utilization, min=0.0, max=1.0),
    ] = None
    concurrency: Concurrency = None
    timeout: Timeout = None
    grammar: GrammarKind = None
    data: DataName = None
    index: IndexName = None
    topk: SharedTopK = None
    max_steps: Annotated[int | None, option("N", "Maximum steps per question.", _LIMITS.max_steps, min=1)] = None
    max_tokens: Annotated[int | None, option("N", "Maximum tokens per step.", _LIMITS.max_tokens, min=1)] = None
    world_seed: SharedWorldSeed = None


_GUIDE_PANEL = "Sampling and guided inference"
#: Settings of a guide, with --guide.
GuideOptions = Annotated[
    Typed,
    GuideConfig,
    {
        "n": "With --guide: candidates per step or per question.",
        "strategy": "With --guide: CHOICES.",
        "aggregate": "With --strategy beam or trajectories: CHOICES of the step scores.",
        "beams": "With --strategy beam: beam width.",
        "simulations": "With --strategy mcts: simulations per question.",
    },
    _GUIDE_PANEL,
]


@dataclass(frozen=True, slots=True)
class SamplingOptions(OptionGroup):
    """Sampling and guided inference: sample several candidates and choose."""

    panel = _GUIDE_PANEL

    temperature: Annotated[float | None, option("N", "0 is greedy.", "0; 1 with --guide", min=0.0)] = None
    top_p: Annotated[float | None, option("N", "Nucleus sampling.", "1", min=0.0, max=1.0)] = None
    guide: Annotated[
        str | None,
        option(
            "NAME",
            "Sample several candidates and choose by: prm (the run's newest reward model), a reward model folder, "
            "gold (the gold judge) or vote (the most common answer).",
            "one episode, not guided",
        ),
    ] = None
    weighted: Annotated[
        bool, typer.Option("--weighted", help="With --guide: multiply each score by the number of equal candidates.")
    ] = False

    def guide_config(self, guided: Typed) -> GuideConfig | None:
        """Settings of the guide, with those that were typed; None without --guide."""
        typed = {**guided, "weighted": True} if self.weighted else guided
        if self.guide is None:
            if typed:
                raise StepladderError(f"--{next(iter(typed))} needs --guide prm, gold, vote or FOLDER")
            return None
        if self.temperature == 0:
            raise StepladderError("--temperature 0 makes all candidates equal: with --guide it must be above 0")
        by = self.guide if self.guide in ("gold", "vote") else "prm"
        sampling = given(temperature=self.temperature, top_p=self.top_p)
        return GuideConfig.read({"by": by, **typed, **sampling}, "--guide")

    def reward_model(self, run: RunFolder | None) -> str | None:
        """The folder of the reward model that --guide names; None if it names none."""
        if self.guide in (None, "gold", "vote"):
            return None
        if self.guide != "prm":
            folder = builtin_folder(self.guide) or expand_path(self.guide)
            if not (folder / "config.json").is_file():
                expected = "expected prm, gold, vote or a reward model folder"
                near = nearest(self.guide, ("prm", "gold", "vote"))
                raise StepladderError(f"--guide {self.guide}: {expected}{near and '.'}{near}")
            return str(folder)
        if run is None:
            raise StepladderError("--guide prm uses the reward model of a run: add --run DIR, or give --guide FOLDER")
        return str(output_of(run.path, REWARD))


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
    #: Of a run: which policy was chosen, and why.
    choice: PolicyChoice | None

    @classmethod
    def from_options(
        cls, run: Path | None, options: AgentOptions, sampling: SamplingOptions, guided: Typed, **others: Any
    ) -> "AgentSetup":
        """Resolve what was typed, and say who answers. Opens nothing yet. `others`: of the command itself."""
        folder = RunFolder.open(run) if run is not None else None
        guide = sampling.guide_config(guided)
        engine, model, choice = _engine_and_model(folder, options)
        typed = {**options.typed(), **given(ray=others.pop("ray", None))}
        typed["engine"] = engine if engine in ("openai", *VLLM_ENGINES) else None
        others_only = [*(_SERVER_OPTIONS if engine != "openai" else ())]
        others_only += _VLLM_OPTIONS if engine not in VLLM_ENGINES else ()
        typed = {name: value for name, value in typed.items() if name not in others_only}  # refused below
        if options.chat_options is not None:
            typed["chat_options"] = _chat_options(options.chat_options)
        # The oracle always keeps to the format; who serves an agent wants answers.
        prompted = False if engine == ORACLE else True if engine == "openai" or "port" in others else None
        context = RunContext(agent_config(folder, options.model, typed), prompted=prompted, remote=engine == "openai")
        temperature = guide.temperature if guide is not None else sampling.temperature or 0.0
        limits = context.episode(temperature, **given(top_p=sampling.top_p))
        setup = cls(options, context, engine, model, limits, guide, sampling.reward_model(folder), choice)
        setup._reject_unused({**options.typed(), **sampling.typed(), **given(**others)})
        if options.policy_budget is not None and others.get("out") is None:
            raise StepladderError(
                "--policy-budget needs a folder that keeps the spend: it works with `eval --out DIR` and `explore`"
            )
        say_upper_bound(oracle=engine == ORACLE, gold_guide=setup.upper_bound)
        return setup

    def _reject_unused(self, typed: Typed) -> None:
        """Raise if an option was typed that has no effect."""
        oracle, server = self.engine == ORACLE, self.engine == "openai"
        local, greedy = not oracle and not server, self.episode.sampling.temperature == 0
        model = "with the oracle, which generates no text: add --model NAME or --run DIR"
        process = model if oracle else "with a server: it is a setting of models in this process"
        rules = (
            ("base_url", local, f"with --engine {self.engine}: leave out one of them"),
            ("api concurrency timeout grammar policy_budget", not server, "without a server: add --base-url URL"),
            ("max_tokens top_p format max_format_errors force_answer prime prompt hint chat_options", oracle, model),
            ("temperature", oracle and self.guide is None, model),
            ("batch_size", not local, process),
            (" ".join(_VLLM_OPTIONS), self.engine not in VLLM_ENGINES, "without vLLM: add --engine vllm"),
            ("device dtype", not local and self.reward is None, process),  # a reward model uses them too
            # Clients of a server may choose another temperature.
            ("top_p", greedy and "port" not in typed, "at temperature 0, which is greedy: add --temperature 1"),
            ("prices", not {"policy_budget", "answer_judge"} & typed.keys(), "without a budget: add --policy-budget"),
            ("overwrite", "out" not in typed, "without --out DIR: nothing is saved"),
        )
        for names, unused, why in rules:
            for name in names.split():
                if unused and name in typed:
                    raise StepladderError(f"--{name.replace('_', '-')} has no effect {why}")

    @property
    def upper_bound(self) -> bool:
        """Whether gold answers are used to answer."""
        return self.engine == ORACLE or (self.guide is not None and self.guide.by == "gold")

    def answer(self, question: Question, seed: int, limits: EpisodeConfig | None = None) -> Algorithm[Trajectory]:
        """The algorithm that answers a question: one episode, or a guided search."""
        limits = limits or self.episode
        if self.guide is None:
            return episode(self.context.agent, question, limits, seed)
        return guided_search(self.context.agent, question, limits, self.guide.guide(self.reward), seed)

    @property
    def streams(self) -> bool:
        """Whether steps can be shown as they are made: other strategies choose among trajectories at the end."""
        return self.guide is None or self.guide.guide().strategy == "actions"

    @contextmanager
    def driver(self, in_flight: int | None = None, folder: Path | None = None) -> Iterator[Driver]:
        """A driver with retriever, engine and step scorer, all closed at the end. `folder`: of paid replies."""
        scoring = self.guide.scoring(self.reward) if self.guide else None
        limits = given(in_flight=in_flight)
        with (
            closing(self.context),
            open_driver(self.context, self.model, self.engine, folder=folder, scoring=scoring, **limits) as driver,
        ):
            yield driver


def _chat_options(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise StepladderError(f"--chat-options: expected a JSON object such as '{{\"a\": false}}', found {text[:60]!r}")
    return found


def say_upper_bound(
    *, oracle: bool, gold_guide: bool = False, advice: str = "For a model, add --model nano or --run DIR"
) -> None:
    """Print a warning if gold answers are used to answer: the scores are then no model's."""
    if oracle:
        say(
            "[bold yellow]The oracle answers, not a model.[/] It sees the gold answers: its scores are an upper bound. "
            + advice,
            ERR,
        )
    elif gold_guide:
        say(
            "[bold yellow]The gold judge chooses among the candidates.[/] It sees the gold answers: the scores are an "
            "upper bound",
            ERR,
        )


def policy_of(run: RunFolder, stage: str | None) -> PolicyChoice:
    """The policy of a stage, by default the best one; prints which it is, and why."""
    choice = choose_policy(run, stage)
    say(f"[dim]{printable(str(choice))}; --stage NAME uses another[/]", ERR)
    return choice


def _engine_and_model(run: RunFolder | None, options: AgentOptions) -> tuple[str, str | None, PolicyChoice | None]:
    """What was typed, or the best policy of a run, openai for a URL, else the oracle."""
    engine, model = options.engine, options.model
    if engine is None and options.base_url is not None:
        engine = "openai"
    plays_run = run is not None and model is None and engine in (None, "transformers", *VLLM_ENGINES)
    if options.stage is not None and not plays_run:
        flags = {"--model": model, "--base-url": options.base_url, f"--engine {engine}": options.engine}
        others = " and ".join(flag for flag, value in flags.items() if value)
        advice = ", ".join([*(["add --run DIR"] if run is None else []), *([f"leave out {others}"] if others else [])])
        raise StepladderError(f"--stage {options.stage} selects a policy of a run: {advice}")
    choice = policy_of(run, options.stage) if run is not None and plays_run else None
    model = str(choice.path) if choice is not None else model
    return engine or ("transformers" if model else ORACLE), model, choice
