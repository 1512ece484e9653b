"""`serve` answers searches of other programs over HTTP."""

from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.options import WorldSeed, listed, passages_of, path_of
from stepladder.core.io.auth_token import read_token
from stepladder.core.trace_printer import printable
from stepladder.data import DATA_SETS, names_data
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.factory import open_retriever, reranked
from stepladder.retrieval.index.bm25 import BM25Index
from stepladder.retrieval.index.build import checksum_of
from stepladder.retrieval.index.manifest import IndexInfo, index_info
from stepladder.retrieval.remote.limits import ServerConfig

_DEFAULTS = ServerConfig()


def serve_command(
    index: Annotated[
        str, typer.Argument(metavar="INDEX", help=f"Index folder, or data sets: {listed(DATA_SETS)}, hotpotqa ...")
    ],
    host: Annotated[str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is all of this machine's.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            parser=path_of,
            help="File with a token that clients must send [dim](default: STEPLADDER_TOKEN, if set)[/]",
        ),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let everyone search who can connect, also from other machines.")
    ] = False,
    topk: Annotated[int, typer.Option("--topk", help="Passages a query, where the client does not say.")] = (
        _DEFAULTS.topk
    ),
    max_topk: Annotated[int, typer.Option("--max-topk", help="Most passages a query.")] = _DEFAULTS.max_topk,
    max_queries: Annotated[int, typer.Option("--max-queries", help="Most queries a request.")] = _DEFAULTS.max_queries,
    max_characters: Annotated[int, typer.Option("--max-characters", help="Most characters a query.")] = (
        _DEFAULTS.max_characters
    ),
    max_body_bytes: Annotated[int, typer.Option("--max-body-bytes", help="Most bytes a request.")] = (
        _DEFAULTS.max_body_bytes
    ),
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", help="Most queries that wait; further clients are told to come back.")
    ] = _DEFAULTS.max_waiting,
    body_seconds: Annotated[float, typer.Option("--body-seconds", help="What a client gets to send a request.")] = (
        _DEFAULTS.body_seconds
    ),
    cache_entries: Annotated[int, typer.Option("--cache-entries", help="Most results to keep; 0 keeps none.")] = (
        _DEFAULTS.cache_entries
    ),
    cache_bytes: Annotated[int, typer.Option("--cache-bytes", help="Most bytes of results to keep; 0 keeps none.")] = (
        _DEFAULTS.cache_bytes
    ),
    drain_seconds: Annotated[
        float, typer.Option("--drain-seconds", help="What requests under way get when the server is asked to end.")
    ] = _DEFAULTS.drain_seconds,
    device: Annotated[str, typer.Option("--device", help="Where queries are encoded: cpu, auto, cuda.")] = "cpu",
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="A cross-encoder that puts what is found in order anew.")
    ] = None,
    access_log: Annotated[bool, typer.Option("--access-log", help="Print a line for every request.")] = False,
    world_seed: WorldSeed = 0,
) -> None:
    """Serve an index to many clients: POST /retrieve as in Search-R1, and /health, /info, /metrics, /openapi.json."""
    from stepladder.serve.search.search_server import serve  # the libraries of a server are of no use to other commands

    settings = ServerConfig.read(
        {
            "topk": topk,
            "max_topk": max_topk,
            "max_queries": max_queries,
            "max_characters": max_characters,
            "max_body_bytes": max_body_bytes,
            "max_waiting": max_waiting,
            "body_seconds": body_seconds,
            "cache_entries": cache_entries,
            "cache_bytes": cache_bytes,
            "drain_seconds": drain_seconds,
            "token": read_token(token_file),
        }
    )
    retriever, info = _open(index, world_seed, device, rerank)

    def announce(url: str) -> None:
        told = f"[bold]{url}[/] serves {printable(index)}, {info.passages:,} passages (Ctrl-C ends it)"
        Console(stderr=True).print(told, highlight=False, soft_wrap=True)

    with closing(retriever):
        serve(
            retriever,
            settings,
            asdict(info),
            host=host,
            port=port,
            insecure=insecure,
            access_log=access_log,
            announce=announce,
        )


def _open(index: str, world_seed: int, device: str, rerank: str | None) -> tuple[Retriever, IndexInfo]:
    """An index, and what `/info` tells about it; one of a data set lives in memory."""
    retriever: Retriever
    if names_data(index):
        passages = passages_of(index, world_seed)
        retriever = reranked(BM25Index.from_passages(passages), rerank, device)
        info = IndexInfo("bm25", len(passages), {"world_seed": world_seed}, index, "", checksum_of(passages), {})
    else:
        retriever = open_retriever(index, device=device, rerank=rerank)
        info = index_info(path_of(index))
    return retriever, replace(info, settings={**info.settings, "rerank": rerank}) if rerank else info
