"""`serve` serves an index over HTTP; `serve-agent` serves a trained agent as a chat model (HTTP) or as a tool (MCP)."""

import sys
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.agent_options import AgentOptions, AgentSetup, GuideOptions, SamplingOptions
from stepladder.cli.declarations import (
    ERR,
    OptionGroup,
    argument,
    given,
    listed,
    option,
    path_option,
    say,
    takes_groups,
)
from stepladder.cli.index import load_passages
from stepladder.cli.options import Fuse, RankConstant, Rerank, RunPath, WorldSeed
from stepladder.core.errors import StepladderError
from stepladder.core.extras import install_command
from stepladder.core.io.auth_token import read_token
from stepladder.core.io.masking import hide
from stepladder.core.requests import Algorithm, Sampling
from stepladder.core.trace import Question, Trajectory
from stepladder.core.trace_printer import printable
from stepladder.data import DATA_SETS, is_dataset_name
from stepladder.pipeline.resources import ORACLE
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.factory import load_retriever, retriever_info, with_reranker
from stepladder.retrieval.hybrid import FusionConfig
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.index.build import passages_checksum
from stepladder.retrieval.index.manifest import IndexInfo
from stepladder.serve.agent.served_agent import ServedAgent
from stepladder.serve.server_configs import AgentServerConfig, ServerConfig

#: Help texts of the limits of all servers, by setting.
LIMITS = {
    "topk": "Passages per query if the request does not set it.",
    "max_topk": "Maximum passages per query.",
    "max_queries": "Maximum queries per request.",
    "max_policies": "Maximum policies of the playground that are loaded at once; two can be compared.",
    "max_characters": "Maximum characters per query (longer ones are truncated) or question.",
    "max_connections": "Maximum open connections.",
    "max_header_bytes": "Maximum bytes of a request's headers.",
    "header_seconds": "Timeout for receiving a request's headers, in seconds.",
    "idle_seconds": "Timeout for the next request on a connection, in seconds.",
    "max_body_bytes": "Maximum bytes per request.",
    "max_running": "Maximum questions answered at once.",
    "max_waiting": "Maximum queries or questions in the queue; further requests get HTTP 429.",
    "body_seconds": "Timeout for receiving a request, in seconds.",
    "answer_seconds": "Timeout for answering a question, in seconds, including the time in the queue.",
    "cache_entries": "Maximum cached results; 0 disables the cache.",
    "cache_bytes": "Maximum bytes of cached results; 0 disables the cache.",
    "refresh_seconds": "Time between two looks at the files of a run that is watched, in seconds.",
    "drain_seconds": "Time that running requests get to finish at shutdown, in seconds.",
}


@dataclass(frozen=True, slots=True)
class ListenOptions(OptionGroup):
    """Where a server listens, and who may connect."""

    panel = "Server"

    host: Annotated[str, option("ADDRESS", "Address to listen on; 0.0.0.0 means all interfaces.")] = "127.0.0.1"
    token_file: Annotated[
        Path | None,
        path_option("FILE", "File with the bearer token that clients must send.", "STEPLADDER_TOKEN, if set"),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow requests from other machines without a token.")
    ] = False
    access_log: Annotated[bool, typer.Option("--access-log", help="Print one line per request.")] = False

    def arguments(self, port: int, what: str, path: str = "") -> dict[str, Any]:
        """Arguments of a server. `what` it serves, and under which `path`, is printed when it is ready."""

        def announce(url: str) -> None:
            say(f"[bold]{url}{path}[/] serves {printable(what)} (press Ctrl-C to stop)", ERR)

        options = {"host": self.host, "insecure": self.insecure, "access_log": self.access_log}
        return {**options, "port": port, "announce": announce}


#: The port of a server.
PORT = option("N", "Port; 0 takes a free one.", min=0, max=65535, rich_help_panel="Server")


@takes_groups
def serve_command(
    *,
    index: Annotated[
        str, argument("INDEX", f"Index folder, several joined by +, or data sets: {listed(DATA_SETS)}, hotpotqa ...")
    ],
    port: Annotated[int, PORT] = 8000,
    device: Annotated[str, option("NAME", "Device of the query encoder and of GPU FAISS: cpu, auto, cuda.")] = "cpu",
    rerank: Rerank = None,
    fusion: Fuse = None,
    rank_constant: RankConstant = None,
    world_seed: WorldSeed = 0,
    listen: ListenOptions,
    limits: Annotated[ServerConfig, LIMITS],
) -> None:
    """Serve an index to many clients: POST /retrieve as in Search-R1, and /health, /info, /metrics, /openapi.json."""
    from stepladder.serve.search.search_server import serve  # imports the HTTP libraries

    settings = ServerConfig.read({**limits.model_dump(), "token": read_token(listen.token_file)})
    fused = FusionConfig.read(given(fusion=fusion, rank_constant=rank_constant))
    retriever, info = _open_index(index, world_seed, device, rerank, fused)
    with closing(retriever):
        serve(retriever, settings, asdict(info), **listen.arguments(port, f"{index}, {info.passages:,} passages"))


def _open_index(
    index: str, world_seed: int, device: str, rerank: str | None, fusion: FusionConfig
) -> tuple[Retriever, IndexInfo]:
    """A retriever, and what `/info` returns about it. The index of a data set is built in memory."""
    retriever: Retriever
    if is_dataset_name(index):
        passages = load_passages(index, world_seed)
        retriever = with_reranker(BM25Index.from_passages(passages), rerank, device)
        info = IndexInfo("bm25", len(passages), {"world_seed": world_seed}, index, "", passages_checksum(passages), {})
    else:
        retriever = load_retriever(index, device=device, rerank=rerank, fusion=fusion)
        info = retriever_info(index) or IndexInfo("remote", 0, {}, hide(index), "", "", {})
    changes = given(rerank=rerank, fusion=fusion.fusion, rank_constant=fusion.rank_constant)
    return retriever, replace(info, settings={**info.settings, **changes}) if changes else info


@takes_groups
def serve_agent_command(
    *,
    run: RunPath = None,
    mcp: Annotated[bool, typer.Option("--mcp", help="Serve MCP over stdin and stdout instead of HTTP.")] = False,
    name: Annotated[str | None, option("NAME", "Model name for clients.", "the name of the run or model")] = None,
    port: Annotated[int, PORT] = 8001,
    options: AgentOptions,
    sampling: SamplingOptions,
    guided: GuideOptions,
    listen: ListenOptions,
    limits: Annotated[AgentServerConfig, LIMITS],
) -> None:
    """Serve an agent: OpenAI's POST /v1/chat/completions, a web page (at /), and MCP (at /mcp, or --mcp)."""
    if options.engine == ORACLE or (run is None and options.model is None):
        raise StepladderError(
            "nothing to serve: add --run DIR or --model NAME. The oracle can only answer questions of its data set"
        )
    mcp_problem = f"its library is not installed. Type: {install_command('mcp')}" if find_spec("mcp") is None else ""
    if mcp and mcp_problem:
        raise StepladderError(f"--mcp: {mcp_problem}")
    setup = AgentSetup.from_options(run, options, sampling, guided, port=port)
    if setup.guide is not None and setup.guide.by == "gold":
        raise StepladderError("the gold judge can only judge questions of its data set: use --guide prm or vote")
    model_name = name or (run.absolute().name if run is not None else Path(str(setup.model)).name) or limits.model
    token = None if mcp else read_token(listen.token_file)
    settings = AgentServerConfig.read({**limits.model_dump(), "model": model_name, "token": token})
    shared = setup.context.settings

    def answer(question: Question, sampling: Sampling, seed: int) -> Algorithm[Trajectory]:
        return setup.answer(question, seed, replace(setup.episode, sampling=sampling))

    with ExitStack() as stack:
        with redirect_stdout(sys.stderr):  # MCP clients read standard output
            driver = stack.enter_context(setup.driver(in_flight=settings.max_running))
        info = {
            "agent": shared.agent,
            "engine": setup.engine,
            "policy": setup.model,
            "index": shared.data.index or (shared.data.name if driver.retriever is not None else None),
            "episode": asdict(setup.episode),
            "prompting": asdict(setup.context.agent.play),
            "guide": None if setup.guide is None else setup.guide.describe(),
        }
        served = ServedAgent(driver, answer, setup.episode.sampling, setup.episode.k, info, setup.streams)
        if setup.guide is None:
            served = replace(served, agent=setup.context.agent, limits=setup.episode)
        if mcp:
            _serve_stdio(served, settings)
            return
        from stepladder.serve.agent.agent_server import serve_agent  # imports the HTTP libraries

        if mcp_problem:
            say(f"[bold]MCP is off[/]: {printable(mcp_problem)}", ERR)
        what = f"{settings.model} to OpenAI clients, and a page to ask it at /"
        serve_agent(served, settings, **listen.arguments(port, what, "/v1"))


def _serve_stdio(agent: ServedAgent, settings: AgentServerConfig) -> None:
    import asyncio

    from stepladder.serve.agent.mcp_server import serve_stdio
    from stepladder.serve.agent.scheduler import AgentMetrics, Scheduler

    scheduler = Scheduler(agent.driver, max_waiting=settings.max_waiting, metrics=AgentMetrics(), live=agent.live)
    asyncio.run(serve_stdio(agent, scheduler, settings))
