"""Options that several commands share, and the things they make: shared settings, an engine."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.agents import AGENTS, Agent, is_agent_file
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expanded
from stepladder.core.trace import Passage
from stepladder.data import DATA_SETS, PUBLISHED, open_data
from stepladder.engines import ENGINES, Engine, make_engine
from stepladder.models.adapters import agent_of
from stepladder.pipeline.fingerprint import agent_content
from stepladder.pipeline.recipe import with_value
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.run_folder import RunFolder


class Api(StrEnum):
    """The two ways to ask an OpenAI-compatible server."""

    chat = "chat"
    completions = "completions"


def path_of(text: str) -> Path:
    return expanded(text)


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


def passages_of(data: str, world_seed: int) -> Sequence[Passage]:
    """The passages of a data set, or of several."""
    passages = open_data(data, seed=world_seed).passages
    if passages is None:
        raise StepladderError(f"{data} comes without passages: give a corpus to index")
    return passages


_DEFAULTS = SharedConfig()


def _unset(what: str, default: object) -> str:
    """Help for an option that, when left out, is the run's (--run) or else a default."""
    return f"{what} [dim](default: {default})[/]"


#: What may be given as an agent.
AGENTS_HELP = f"{listed(AGENTS)}; or a Python file with one of your own"

_MODELS = (
    "a model folder, an adapter, a GGUF file, a hub name, nano (comes with Stepladder), smollm2-135m (see "
    "docs/models.md) or tiny (random weights)"
)

_K = "Passages a search returns."
_WORLD_SEED = "Seed of the Atlas world."
_DATA = f"{listed((*DATA_SETS, *PUBLISHED))}, a folder of question files, or a question file; several joined by +."

AgentName = Annotated[
    str | None,
    typer.Option("--agent", help=_unset(f"How to work on a question: {AGENTS_HELP}.", _DEFAULTS.agent)),
]
EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help=_unset(
            f"Who writes: {listed(ENGINES)}.",
            "transformers with a --model or --run, openai with a --base-url, else gold",
        ),
    ),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help=f"{_MODELS[0].upper()}{_MODELS[1:]}; or the server's name for it.")
]
Policy = Annotated[str, typer.Option("--model", help=f"The model to begin with: {_MODELS}.")]
RunPath = Annotated[
    Path | None,
    typer.Option("--run", parser=path_of, help="A run: take its newest policy, agent, data, index and limits."),
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="URL of an OpenAI-compatible server, such as http://localhost:8000/v1.")
]
ApiName = Annotated[Api, typer.Option("--api", help="How to ask the server.")]
Device = Annotated[str | None, typer.Option("--device", help=_unset("auto, cpu, cuda or cuda:N.", _DEFAULTS.device))]
DType = Annotated[str | None, typer.Option("--dtype", help=_unset("auto, fp32 or bf16.", _DEFAULTS.dtype))]
Batch = Annotated[
    int | None,
    typer.Option("--batch", min=1, help=_unset("Most questions in one batch of a local model.", _DEFAULTS.batch_size)),
]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Most calls to a server at once.")]
DataName = Annotated[str | None, typer.Option("--data", help=_unset(_DATA, _DEFAULTS.data.name))]
IndexPlace = Annotated[
    str | None,
    typer.Option("--index", help="Index folder, or URLs of search servers joined by commas; Atlas brings its own."),
]
K = Annotated[int, typer.Option("-k", "--k", min=1, help=_K)]
SharedK = Annotated[int | None, typer.Option("-k", "--k", min=1, help=_unset(_K, _DEFAULTS.search.k))]
MaxSteps = Annotated[
    int | None, typer.Option("--max-steps", min=1, help=_unset("Most steps a question.", _DEFAULTS.episode.max_steps))
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help=_unset("Most tokens a step.", _DEFAULTS.episode.max_tokens))
]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Nucleus sampling.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of all that is random.")]
WorldSeed = Annotated[int, typer.Option("--world-seed", help=_WORLD_SEED)]
SharedWorldSeed = Annotated[
    int | None, typer.Option("--world-seed", help=_unset(_WORLD_SEED, _DEFAULTS.data.world_seed))
]
RunOut = Annotated[Path, typer.Option("--out", parser=path_of, help="Folder of the run.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a value; may be given several times, the later wins."),
]
Update = Annotated[
    bool, typer.Option("--update", help="Remove and compute again what a changed recipe no longer gives.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def shared_settings(run: Path | None, given: dict[str, object], model: str | None = None) -> SharedConfig:
    """The settings of a run, or the defaults, with those that were given (by name, such as `search.k`; None is not).

    Without both the agent is that of the model, if this is an adapter that says so.
    """
    plain: object = {}
    if run is None and model is not None and (trained_as := agent_of(expanded(model))) is not None:
        plain = {"agent": trained_as}
    if run is not None:
        folder = RunFolder.open(run)
        plain = folder.recipe().shared.model_dump()
        if given.get("agent") is None:
            _expect_same_agent(folder)
    if given.get("data.name") is not None:
        for split in ("train", "dev", "test"):  # question files of the run give way to what is asked for
            plain = with_value(plain, ["data", split], None)
        for number in ("holdout", "warmup"):
            plain = with_value(plain, ["data", number], 0)
    for name, value in given.items():
        if value is not None:
            plain = with_value(plain, name.split("."), value)
    return SharedConfig.read(plain)


def _expect_same_agent(run: RunFolder) -> None:
    """Refuse an agent file that has changed since the run's stages were made with it."""
    agent = run.recipe().shared.agent
    records = [record for name in run.stage_names() if (record := run.known(name)) is not None]
    if is_agent_file(agent) and any(record.ingredients.get("agent") != agent_content(agent) for record in records):
        raise StepladderError(
            f"the agent file {agent} has changed since the run {run.path} was made with it: put back what was there, "
            f"or say --agent {agent} to use it as it is now"
        )


def engine_and_model(
    run: Path | None, engine: str | None, model: str | None, base_url: str | None
) -> tuple[str, str | None]:
    """What was named, or what goes with the rest: the newest policy of a run, a server for its URL, else the oracle."""
    if engine is None and base_url is not None:
        engine = "openai"
    if run is not None and model is None and engine in (None, "transformers", "vllm"):
        policy = RunFolder.open(run).newest("policy")
        if policy is None:
            raise StepladderError(f"no stage of the run {run} has made a policy yet: go on with it, or name a --model")
        model = str(policy)
    return engine or ("transformers" if model else "gold"), model


@contextmanager
def open_engine(
    name: str, agent: Agent, model: str | None, base_url: str | None, api: Api, **options: Any
) -> Iterator[Engine]:
    """The engine that was asked for, closed in the end."""
    engine = make_engine(name, agent, model=model, base_url=base_url, api=api.value, **options)
    try:
        yield engine
    finally:
        engine.close()
