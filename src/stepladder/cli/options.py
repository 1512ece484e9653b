"""Options that several commands share."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from stepladder.agents import AGENTS
from stepladder.cli.declarations import ERR, OptionGroup, listed, number_option, option, path_option, say
from stepladder.cli.usage_errors import reject_renamed
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.data import DATA_SETS, PUBLISHED
from stepladder.engines import ENGINES
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.runner import StaleStage


class Api(StrEnum):
    """The two endpoints of an OpenAI-compatible server."""

    chat = "chat"
    completions = "completions"


_DEFAULTS = SharedConfig()


#: Values of --agent.
AGENTS_HELP = f"{listed(AGENTS)}; or a Python file with your own agent"

_MODELS = (
    "a model folder, an adapter, a GGUF file, a Hugging Face name, nano (included), smollm2-135m (see docs/models.md) "
    "or tiny (random weights)"
)

_TOPK = "Passages per search."
_WORLD_SEED = "Seed of the generated Atlas world."
_DATA = f"{listed((*DATA_SETS, *PUBLISHED))}, a folder of question files, or a question file; join several with +."

AgentName = Annotated[
    str | None, option("--agent", "NAME", f"Prompt format and actions: {AGENTS_HELP}.", default=_DEFAULTS.agent)
]
EngineName = Annotated[
    str | None,
    option(
        "--engine",
        "NAME",
        f"Generation backend: {listed(ENGINES)}. `oracle` replays gold decompositions (an upper bound).",
        default="transformers with --model or --run, openai with --base-url, else oracle",
        callback=reject_renamed,
    ),
]
ModelName = Annotated[
    str | None,
    option(
        "--model",
        "NAME",
        f"{_MODELS[0].upper()}{_MODELS[1:]}; with --base-url, the server's model name.",
        default="the policy of --run",
    ),
]
RunPath = Annotated[
    Path | None,
    path_option("--run", "DIR", "Use the policy of a run with its agent, data, index and limits.", "no run"),
]
RunToRead = Annotated[Path, path_option("--run", "DIR", "The run.")]
RunToExtend = Annotated[Path, path_option("--run", "DIR", "The run to add the stage to.")]
BaseUrl = Annotated[
    str | None,
    option("--base-url", "URL", "URL of an OpenAI-compatible server: http://localhost:8000/v1 ...", "no server"),
]
ApiName = Annotated[Api, typer.Option("--api", help="Endpoint of the server.")]
Device = Annotated[str | None, option("--device", "NAME", "auto, cpu, cuda or cuda:N.", default=_DEFAULTS.device)]
DType = Annotated[str | None, option("--dtype", "NAME", "auto, fp32 or bf16.", default=_DEFAULTS.dtype)]
BatchSize = Annotated[
    int | None,
    number_option("--batch-size", "Maximum batch size of a local model.", default=_DEFAULTS.batch_size, min=1),
]
Concurrency = Annotated[int, number_option("--concurrency", "Maximum concurrent requests to a server.", min=1)]
DataName = Annotated[str | None, option("--data", "NAME", _DATA, default=_DEFAULTS.data.name)]
IndexName = Annotated[
    str | None,
    option(
        "--index",
        "INDEX",
        "Index folder, or URLs of search servers joined by commas.",
        default="the passages of the data set",
    ),
]
TopK = Annotated[int, number_option("-k --topk", _TOPK, min=1)]
SharedTopK = Annotated[int | None, number_option("-k --topk", _TOPK, default=_DEFAULTS.search.k, min=1)]
MaxSteps = Annotated[
    int | None, number_option("--max-steps", "Maximum steps per question.", default=_DEFAULTS.episode.max_steps, min=1)
]
MaxTokens = Annotated[
    int | None, number_option("--max-tokens", "Maximum tokens per step.", default=_DEFAULTS.episode.max_tokens, min=1)
]
Seed = Annotated[int, number_option("--seed", "Random seed.")]
WorldSeed = Annotated[int, number_option("--world-seed", _WORLD_SEED)]
SharedWorldSeed = Annotated[int | None, number_option("--world-seed", _WORLD_SEED, default=_DEFAULTS.data.world_seed)]
Rerank = Annotated[str | None, option("--rerank", "NAME", "A cross-encoder that reranks the results.", "no reranking")]
RunOut = Annotated[Path, path_option("--out", "DIR", "Run folder.")]
Overrides = Annotated[
    list[str] | None, option("--set", "NAME=VALUE", "Override a setting. Repeatable; the last value wins.", "none")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class UpdateOptions(OptionGroup):
    """Options of every command that runs stages."""

    overrides: Overrides = None
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

    name: Annotated[str | None, option("--name", "NAME", "Name of the stage.", default="its kind")] = None


@dataclass(frozen=True, slots=True)
class NewRunOptions(OptionGroup):
    """Model, agent and data of a new run."""

    panel: ClassVar[str | None] = "New run (with --out)"

    model: Annotated[str | None, option("--model", "NAME", f"Initial policy: {_MODELS}.", _DEFAULTS.policy)] = None
    agent: AgentName = None
    data: DataName = None
    dev: Annotated[
        Path | None, path_option("--dev", "FILE", "Dev questions, if --data is a question file.", default="none")
    ] = None
    index: IndexName = None
    topk: SharedTopK = None
    world_seed: SharedWorldSeed = None
    seed: Annotated[int | None, number_option("--seed", "Random seed.", default=0)] = None
