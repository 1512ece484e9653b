"""Options that several commands share."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from stepladder.agents import AGENTS
from stepladder.cli.declarations import OptionGroup, listed, number_option, option, path_option
from stepladder.cli.renamed import reject_renamed
from stepladder.data import DATA_SETS, PUBLISHED
from stepladder.engines import ENGINES
from stepladder.pipeline.resources import SharedConfig


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
    option("--model", "NAME", f"{_MODELS[0].upper()}{_MODELS[1:]}; with --base-url, the server's model name."),
]
Policy = Annotated[str, option("--model", "NAME", f"The model to train: {_MODELS}.")]
ExploringModel = Annotated[str | None, option("--model", "NAME", f"With --out: {_MODELS}.", default="nano")]
RunPath = Annotated[
    Path | None, path_option("--run", "DIR", "Use a run's newest policy, its agent, data, index and limits.")
]
_RUN = path_option("--run", "DIR", "The run to add the stage to.")
RunToExtend = Annotated[Path, _RUN]
RunToExtendOrNone = Annotated[Path | None, _RUN]
BaseUrl = Annotated[
    str | None, option("--base-url", "URL", "URL of an OpenAI-compatible server, such as http://localhost:8000/v1.")
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
Questions = Annotated[int | None, number_option("--questions", "Number of questions to use.", min=1)]
NumGenerations = Annotated[int | None, number_option("--num-generations", "Episodes per question.", min=1)]
Rerank = Annotated[str | None, option("--rerank", "NAME", "A cross-encoder that reranks the results.")]
RunOut = Annotated[Path, path_option("--out", "DIR", "Run folder.")]
StageName = Annotated[str | None, option("--name", "NAME", "Name of the stage.", default="its kind")]
Overrides = Annotated[
    list[str] | None, option("--set", "NAME=VALUE", "Override a setting. Repeatable; the last value wins.")
]
Update = Annotated[bool, typer.Option("--update", help="Delete and recompute stale stages.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class StageOptions(OptionGroup):
    """Options of every command that adds a stage to a run."""

    name: StageName = None
    overrides: Overrides = None
    update: Update = False
    as_json: AsJson = False
