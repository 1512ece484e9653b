"""Options that several commands share."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer

from stepladder.agents import AGENTS
from stepladder.cli.declarations import ERR, OptionGroup, budget_option, given, listed, option, path_option, say
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.data import DATA_SETS, PUBLISHED
from stepladder.driver.cluster import RayConfig
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.runner import StaleStage
from stepladder.retrieval.hybrid import RANK_CONSTANT

DEFAULTS = SharedConfig()
#: Values of --agent and of --model.
AGENTS_HELP = f"{listed(AGENTS)}; or a Python file with your own agent"
MODELS_HELP = (
    "a model folder, an adapter, a GGUF file, a Hugging Face name, nano (included), smollm2-135m (see docs/models.md) "
    "or tiny (random weights)"
)

_TOPK = "Passages per search."
_WORLD_SEED = "Seed of the generated Atlas world."
_DATA = f"{listed((*DATA_SETS, *PUBLISHED))}, a folder of question files, or a question file; join several with +."

AgentName = Annotated[str | None, option("NAME", f"Prompt format and actions: {AGENTS_HELP}.", DEFAULTS.agent)]
FormatName = Annotated[
    Literal["strict", "lenient", "constrained"] | None,
    option(
        "NAME",
        "How the model's text is read: strict, lenient (text around an action is allowed, a malformed step gets a "
        "hint) or constrained (decoding follows the agent's grammar).",
        "strict for agent files, and for -brief agents without --base-url; else lenient",
    ),
]
PromptFile = Annotated[
    Path | None,
    path_option("FILE", "Your own prompt: a text with {question}, or YAML (docs/formats.md).", "the agent's own"),
]
HintFile = Annotated[
    Path | None, path_option("FILE", "Your own hint: what the model reads after a malformed step.", "the agent's own")
]
TrustAgent = Annotated[
    bool | None,
    typer.Option("--trust-agent", help="With --agent FILE: remember its content, so that it runs without --agent."),
]
RunPath = Annotated[
    Path | None, path_option("DIR", "Use the policy of a run with its agent, data, index and limits.", "no run")
]
RunToRead = Annotated[Path, path_option("DIR", "The run.")]
RunToExtend = Annotated[Path, path_option("DIR", "The run to add the stage to.")]
DataName = Annotated[str | None, option("NAME", _DATA, DEFAULTS.data.name)]
IndexName = Annotated[
    str | None,
    option(
        "INDEX",
        "Index folder, or URLs of search servers joined by commas; several joined by + are fused.",
        "the passages of the data set",
    ),
]
TopK = Annotated[int, option("N", _TOPK, flags="-k --topk", min=1)]
SharedTopK = Annotated[int | None, option("N", _TOPK, DEFAULTS.search.k, flags="-k --topk", min=1)]
Seed = Annotated[int, option("N", "Random seed.")]
WorldSeed = Annotated[int, option("N", _WORLD_SEED)]
SharedWorldSeed = Annotated[int | None, option("N", _WORLD_SEED, DEFAULTS.data.world_seed)]
Rerank = Annotated[str | None, option("NAME", "A cross-encoder that reranks the results.", "no reranking")]
Fuse = Annotated[
    Literal["ranks", "scores"] | None,
    option(
        "NAME",
        "How several indexes are joined: ranks (reciprocal rank fusion) or scores (normalized).",
        "ranks; scores for one folder such as bm25+hnsw",
    ),
]
RankConstant = Annotated[int | None, option("N", "The constant of rank fusion.", RANK_CONSTANT, min=0)]
RunOut = Annotated[Path, path_option("DIR", "Run folder.", flags="--out")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class UpdateOptions(OptionGroup):
    """Options of every command that runs stages."""

    overrides: Annotated[
        list[str] | None,
        option("NAME=VALUE", "Override a setting. Repeatable; the last value wins.", "none", flags="--set"),
    ] = None
    update: Annotated[
        bool,
        typer.Option(
            "--update", help="List the stages that are stale, ask, then delete and recompute them and what uses them."
        ),
    ] = False
    yes: Annotated[bool, typer.Option("--yes", help="Confirm --update, for scripts.")] = False

    def updating(self) -> dict[str, Any]:
        """Arguments of `run_recipe`."""
        if self.yes and not self.update:
            raise StepladderError("--yes confirms what --update deletes: add --update, or leave it out")
        return {"update": self.update, "confirm": self.confirm}

    def confirm(self, stages: Sequence[StaleStage]) -> None:
        """List stages that will be deleted, and ask. Raises if the answer is no, or if nobody can be asked."""
        say("--update deletes:", ERR)
        for stage in stages:
            say(f"  {printable(f'{stage}: {stage.reason}')}", ERR)
        if self.yes:
            return
        if not sys.stdin.isatty():
            raise StepladderError(
                "nothing was deleted: --update asks first, and this is not a terminal. --yes confirms the list above"
            )
        if not typer.confirm("Delete?", err=True):
            raise StepladderError("nothing was deleted")


@dataclass(frozen=True, slots=True)
class RunOptions(UpdateOptions):
    """Options of every command that runs stages and prints their results."""

    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class StageOptions(RunOptions):
    """Options of every command that adds a stage to a run."""

    name: Annotated[str | None, option("NAME", "Name of the stage.", "its kind")] = None


@dataclass(frozen=True, slots=True)
class ExtendOptions(StageOptions):
    """Options of every command that adds a stage to an existing run."""

    agent: Annotated[
        str | None,
        option("FILE", "The run's agent, if it is a Python file that you have not trusted.", "not needed"),
    ] = None
    trust_agent: TrustAgent = None

    def named(self) -> dict[str, Any]:
        """The run's agent file, as far as the user named it."""
        return given(agent=self.agent, trust_agent=self.trust_agent)


BaseURL = Annotated[
    list[str] | None,
    option(
        "URL",
        "URL of an OpenAI-compatible server with --model: http://localhost:8000/v1 ... Repeatable: calls are spread "
        "over several servers.",
        "no server",
        flags="--base-url",
    ),
]
Api = Annotated[
    Literal["chat", "completions"] | None, option("NAME", "Endpoint of the server: chat or completions.", "chat")
]
Concurrency = Annotated[int | None, option("N", "Maximum concurrent calls to the servers.", 32, min=1)]
Timeout = Annotated[float | None, option("SECONDS", "Maximum duration of one call to the servers.", 60, min=0.1)]
GrammarKind = Annotated[
    Literal["auto", "vllm", "vllm<0.12", "sglang", "llama.cpp"] | None,
    option(
        "NAME",
        "Whose fields carry the grammar of --format constrained: vllm, vllm<0.12, sglang or llama.cpp.",
        "auto, those of all",
    ),
]
PolicyBudget = Annotated[
    str | None, budget_option("Hard spending limit of the server's model over all attempts: 5usd, 2Mtok.")
]


Prices = Annotated[Path | None, path_option("FILE", "YAML file with more model prices.", "the shipped ones")]


@dataclass(frozen=True, slots=True)
class ServerOptions(OptionGroup):
    """A policy behind OpenAI-compatible servers."""

    panel: ClassVar[str | None] = "Policy behind a server"

    base_url: BaseURL = None
    api: Api = None
    concurrency: Concurrency = None
    timeout: Timeout = None
    grammar: GrammarKind = None
    policy_budget: PolicyBudget = None


@dataclass(frozen=True, slots=True)
class NewRunOptions(OptionGroup):
    """Model, agent and data of a new run."""

    panel: ClassVar[str | None] = "New run (with --out)"

    model: Annotated[str | None, option("NAME", f"Initial policy: {MODELS_HELP}.", DEFAULTS.policy)] = None
    agent: AgentName = None
    trust_agent: TrustAgent = None
    format: FormatName = None
    prompt: PromptFile = None
    hint: HintFile = None
    data: DataName = None
    dev: Annotated[Path | None, path_option("FILE", "Dev questions, if --data is a question file.", "none")] = None
    index: IndexName = None
    topk: SharedTopK = None
    world_seed: SharedWorldSeed = None
    seed: Annotated[int | None, option("N", "Random seed.", 0)] = None


@dataclass(frozen=True, slots=True)
class RayOptions(OptionGroup):
    """Workers on a Ray cluster."""

    panel: ClassVar[str | None] = "Ray cluster"

    ray: Annotated[
        str | None,
        option("ADDRESS", "Generate on Ray workers: local, auto, or HOST:PORT of a cluster.", "this process"),
    ] = None
    ray_workers: Annotated[
        int | None, option("N", "With --ray: worker processes.", "as many as there is room for", min=1)
    ] = None
    ray_gpus: Annotated[float | None, option("N", "With --ray: GPUs per worker.", "0", min=0.0)] = None

    def config(self) -> RayConfig | None:
        """The cluster; None without --ray."""
        typed = given(workers=self.ray_workers, gpus_per_worker=self.ray_gpus)
        if self.ray is None:
            if typed:
                raise StepladderError("--ray-workers and --ray-gpus need --ray local, or the ADDRESS of a cluster")
            return None
        return RayConfig.read({**({} if self.ray == "local" else {"address": self.ray}), **typed}, "--ray")

    def settings(self) -> dict[str, Any]:
        """The setting `ray`, if it was typed."""
        config = self.config()
        return {} if config is None else {"ray": config.model_dump(mode="json")}
