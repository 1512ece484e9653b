"""Options that several commands share, and the things they make: settings, an engine, a retriever."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.agents import AGENTS, Agent
from stepladder.data import DATA_SETS, DataSet
from stepladder.engines import ENGINES, Engine, make_engine
from stepladder.errors import StepladderError
from stepladder.explore.episode import EpisodeSettings
from stepladder.request import Sampling
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.bm25 import BM25Index
from stepladder.retrieval.index import open_index


class Api(StrEnum):
    """The two ways to ask an OpenAI-compatible server."""

    chat = "chat"
    completions = "completions"


def path_of(text: str) -> Path:
    return Path(text).expanduser()


def listed(names: Iterable[str]) -> str:
    return ", ".join(names)


AgentName = Annotated[str, typer.Option("--agent", help=f"How to work on a question: {listed(AGENTS)}.")]
EngineName = Annotated[str, typer.Option("--engine", help=f"Who writes: {listed(ENGINES)}.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="A model folder or hub name, 'tiny' (random weights), or the server's name for it."),
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="URL of an OpenAI-compatible server, such as http://localhost:8000/v1.")
]
ApiName = Annotated[Api, typer.Option("--api", help="How to ask the server.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]
DType = Annotated[str, typer.Option("--dtype", help="auto, fp32 or bf16.")]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Most questions in one batch of a local model.")]
Concurrency = Annotated[int, typer.Option("--concurrency", min=1, help="Most calls to a server at once.")]
DataName = Annotated[str, typer.Option("--data", help=f"{listed(DATA_SETS)}, or a question file (.jsonl, .jsonl.gz).")]
IndexFolder = Annotated[
    Path | None, typer.Option("--index", parser=path_of, help="Index folder; Atlas brings its own.")
]
K = Annotated[int, typer.Option("-k", "--k", min=1, help="Passages a search returns.")]
MaxSteps = Annotated[int, typer.Option("--max-steps", min=1, help="Most steps a question.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens a step.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Nucleus sampling.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of sampling.")]
WorldSeed = Annotated[int, typer.Option("--world-seed", help="Seed of the Atlas world.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def episode_settings(max_steps: int, k: int, temperature: float, top_p: float, max_tokens: int) -> EpisodeSettings:
    try:
        return EpisodeSettings(max_steps, k, Sampling(temperature, top_p, max_tokens))
    except ValueError as error:
        raise StepladderError(str(error)) from error


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


def open_retriever(data: DataSet | None, index: Path | None, agent: Agent) -> Retriever | None:
    """The index that was asked for, or one of the data set's own passages."""
    if not agent.searches:
        return None
    if index is not None:
        return open_index(index)
    if data is not None and data.passages is not None:
        return BM25Index.from_passages(data.passages)
    raise StepladderError(
        f"the agent '{agent.name}' searches, and no index was given: add --index DIR "
        "(`stepladder index build CORPUS --out DIR` makes one)"
    )
