"""`serve-agent` lets other programs ask a trained agent: as a chat model over HTTP, or as a tool (MCP)."""

import sys
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.agent_options import (
    AggregateName,
    Beams,
    GuidedTemperature,
    GuideName,
    N,
    Simulations,
    StrategyName,
    Weighted,
    guide_options,
    opened_scorer,
)
from stepladder.cli.options import (
    AgentName,
    Api,
    ApiName,
    BaseUrl,
    Batch,
    Concurrency,
    DataName,
    Device,
    DType,
    EngineName,
    IndexPlace,
    MaxSteps,
    MaxTokens,
    ModelName,
    SharedK,
    SharedWorldSeed,
    TopP,
    engine_and_model,
    open_engine,
    path_of,
    shared_settings,
)
from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.auth_token import read_token
from stepladder.core.requests import Algorithm, Sampling
from stepladder.core.trace import Question, Trajectory
from stepladder.core.trace_printer import printable
from stepladder.driver import Driver
from stepladder.explore.episode import EpisodeConfig, episode
from stepladder.explore.guided import Guide, guided
from stepladder.pipeline.resources import RunContext
from stepladder.serve.agent.served_agent import Play, ServedAgent
from stepladder.serve.agent.server_config import AgentServerConfig

_DEFAULTS = AgentServerConfig()


def serve_agent_command(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN", parser=path_of, help="A run: its newest policy, agent, data, index and limits are served."
        ),
    ] = None,
    named_run: Annotated[
        Path | None, typer.Option("--run", parser=path_of, hidden=True, help="RUN, as other commands have it.")
    ] = None,
    agent: AgentName = None,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api: ApiName = Api.chat,
    device: Device = None,
    dtype: DType = None,
    batch: Batch = None,
    concurrency: Concurrency = 32,
    data: DataName = None,
    index: IndexPlace = None,
    k: SharedK = None,
    max_steps: MaxSteps = None,
    max_tokens: MaxTokens = None,
    guide: GuideName = None,
    n: N = None,
    strategy: StrategyName = None,
    aggregate: AggregateName = None,
    weighted: Weighted = False,
    beams: Beams = None,
    simulations: Simulations = None,
    temperature: GuidedTemperature = None,
    top_p: TopP = 1.0,
    world_seed: SharedWorldSeed = None,
    mcp: Annotated[
        bool, typer.Option("--mcp", help="Speak MCP over standard input and output, instead of HTTP.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="What clients call the model [dim](default: the name of the run, or the model's)[/]"
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is all of this machine's.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8001,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            parser=path_of,
            help="File with a token that clients must send [dim](default: STEPLADDER_TOKEN, if set)[/]",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let everyone ask who can connect, also from other machines.")
    ] = False,
    max_characters: Annotated[int, typer.Option("--max-characters", help="Most characters a question.")] = (
        _DEFAULTS.max_characters
    ),
    max_body_bytes: Annotated[int, typer.Option("--max-body-bytes", help="Most bytes a request.")] = (
        _DEFAULTS.max_body_bytes
    ),
    max_playing: Annotated[int, typer.Option("--max-playing", help="Most questions that are played at once.")] = (
        _DEFAULTS.max_playing
    ),
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", help="Most questions that wait; further clients are told to come back.")
    ] = _DEFAULTS.max_waiting,
    max_topk: Annotated[int, typer.Option("--max-topk", help="Most passages a search of a client.")] = (
        _DEFAULTS.max_topk
    ),
    body_seconds: Annotated[float, typer.Option("--body-seconds", help="What a client gets to send a request.")] = (
        _DEFAULTS.body_seconds
    ),
    answer_seconds: Annotated[float, typer.Option("--answer-seconds", help="Most seconds an answer may take.")] = (
        _DEFAULTS.answer_seconds
    ),
    drain_seconds: Annotated[
        float, typer.Option("--drain-seconds", help="What requests under way get when the server is asked to end.")
    ] = _DEFAULTS.drain_seconds,
    access_log: Annotated[bool, typer.Option("--access-log", help="Print a line for every request.")] = False,
) -> None:
    """Serve an agent: OpenAI's POST /v1/chat/completions with the steps and citations, and MCP (at /mcp, or --mcp)."""
    if run is not None and named_run is not None:
        raise StepladderError(f"one agent is served at a time: {run}, or --run {named_run}")
    run = run or named_run
    if run is None and model is None:
        raise StepladderError(
            "nothing to serve: name a RUN (`stepladder serve-agent runs/mine`) or a --model. The gold engine, which "
            "other commands fall back to, knows the questions of its data set alone"
        )
    if mcp and find_spec("mcp") is None:
        raise StepladderError(f"--mcp needs the library of the protocol: {install_command('mcp')}")
    engine, model = engine_and_model(run, engine, model, base_url)
    if engine == "gold":
        raise StepladderError("the gold engine knows the questions of its data set alone: serve a RUN or a --model")
    settings = AgentServerConfig.read(
        {
            "model": name or (run.absolute().name if run is not None else Path(str(model)).name) or _DEFAULTS.model,
            "max_characters": max_characters,
            "max_body_bytes": max_body_bytes,
            "max_playing": max_playing,
            "max_waiting": max_waiting,
            "max_topk": max_topk,
            "body_seconds": body_seconds,
            "answer_seconds": answer_seconds,
            "drain_seconds": drain_seconds,
            "token": None if mcp else read_token(token_file),
        }
    )
    shared = shared_settings(
        run,
        {
            "agent": agent,
            "data.name": data,
            "data.world_seed": world_seed,
            "data.index": index,
            "search.k": k,
            "episode.max_steps": max_steps,
            "episode.max_tokens": max_tokens,
            "device": device,
            "dtype": dtype,
            "batch_size": batch,
        },
        model,
    )
    context = RunContext(shared)
    chosen_by = guide_options(
        guide,
        run,
        n=n,
        strategy=strategy,
        aggregate=aggregate,
        weighted=weighted,
        beams=beams,
        simulations=simulations,
        temperature=temperature,
        top_p=top_p,
    )
    if chosen_by is not None and chosen_by.settings.by == "gold":
        raise StepladderError(
            "the gold judge knows the questions of its data set alone: serve with --guide prm or vote"
        )
    limits = context.episode(chosen_by.settings.temperature if chosen_by else temperature or 0.0, top_p)
    options = {
        "device": shared.device,
        "dtype": shared.dtype,
        "max_batch": shared.batch_size,
        "concurrency": concurrency,
    }
    with ExitStack() as opened:
        with redirect_stdout(sys.stderr):  # a client of MCP reads what is written to standard output
            opened.enter_context(closing(context))
            retriever = context.retriever
            writer = opened.enter_context(open_engine(engine, context.agent, model, base_url, api, **options))
            scorer = opened.enter_context(opened_scorer(chosen_by, shared))
        driver = Driver(writer, retriever, scorer, in_flight=settings.max_playing)
        info = {
            "agent": shared.agent,
            "engine": engine,
            "policy": model,
            "index": shared.data.index or (shared.data.name if retriever is not None else None),
            "episode": asdict(limits),
            "guide": None if chosen_by is None else chosen_by.settings.told(),
        }
        by = None if chosen_by is None else chosen_by.settings.guide()
        live = by is None or by.strategy == "actions"
        served = ServedAgent(driver, _way_to_play(context, limits, by), limits.sampling, limits.k, info, live)
        if mcp:
            _serve_stdio(served, settings)
            return
        from stepladder.serve.agent.agent_server import (
            serve_agent,  # the libraries of a server are of no use to other commands
        )

        def announce(url: str) -> None:
            told = f"[bold]{url}/v1[/] serves {printable(settings.model)} to OpenAI clients (Ctrl-C ends it)"
            Console(stderr=True).print(told, highlight=False, soft_wrap=True)

        serve_agent(served, settings, host=host, port=port, insecure=insecure, access_log=access_log, announce=announce)


def _way_to_play(context: RunContext, limits: EpisodeConfig, guide: Guide | None) -> Play:
    """How a question is played: by one episode, or by several of which the guide chooses."""

    def play(question: Question, sampling: Sampling, seed: int) -> Algorithm[Trajectory]:
        settings = replace(limits, sampling=sampling)
        if guide is None:
            return episode(context.agent, question, settings, seed)
        return guided(context.agent, question, settings, guide, seed)

    return play


def _serve_stdio(agent: ServedAgent, settings: AgentServerConfig) -> None:
    import asyncio

    from stepladder.serve.agent.mcp_server import serve_stdio
    from stepladder.serve.agent.scheduler import Player, PlayMetrics

    player = Player(agent.driver, max_waiting=settings.max_waiting, metrics=PlayMetrics(), live=agent.live)
    asyncio.run(serve_stdio(agent, player, settings))
