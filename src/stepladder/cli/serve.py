"""`serve` answers searches of other programs over HTTP."""

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.options import WorldSeed, listed, path_of
from stepladder.data import DATA_SETS, open_data
from stepladder.errors import StepladderError
from stepladder.narrate import shown
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.bm25 import BM25Index
from stepladder.retrieval.index import index_info, open_index
from stepladder.retrieval.server_settings import ServerSettings
from stepladder.retrieval.wire import checked_token

_DEFAULTS = ServerSettings()


def serve_command(
    index: Annotated[str, typer.Argument(metavar="INDEX", help=f"Index folder, or one of {listed(DATA_SETS)}.")],
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
    cache_entries: Annotated[int, typer.Option("--cache-entries", help="Results to keep; 0 keeps none.")] = (
        _DEFAULTS.cache_entries
    ),
    drain_seconds: Annotated[
        float, typer.Option("--drain-seconds", help="What requests under way get when the server is asked to end.")
    ] = _DEFAULTS.drain_seconds,
    access_log: Annotated[bool, typer.Option("--access-log", help="Print a line for every request.")] = False,
    world_seed: WorldSeed = 0,
) -> None:
    """Serve an index to many clients: POST /retrieve as in Search-R1, and /health, /info, /metrics."""
    from stepladder.retrieval.server import serve  # the libraries of a server are of no use to other commands

    settings = ServerSettings.read(
        {
            "topk": topk,
            "max_topk": max_topk,
            "max_queries": max_queries,
            "max_characters": max_characters,
            "max_body_bytes": max_body_bytes,
            "max_waiting": max_waiting,
            "cache_entries": cache_entries,
            "drain_seconds": drain_seconds,
            "token": _token(token_file),
        }
    )
    retriever, info = _open(index, world_seed)

    def announce(url: str) -> None:
        told = f"[bold]{url}[/] serves {shown(index)}, {info['passages']:,} passages (Ctrl-C ends it)"
        Console(stderr=True).print(told, highlight=False, soft_wrap=True)

    with closing(retriever):
        serve(
            retriever,
            settings,
            info,
            host=host,
            port=port,
            insecure=insecure,
            access_log=access_log,
            announce=announce,
        )


def _token(file: Path | None) -> str | None:
    try:
        if file is not None:
            return checked_token(file.read_text(encoding="utf-8"))
        text = os.environ.get("STEPLADDER_TOKEN")
        return None if text is None else checked_token(text)
    except (UnicodeDecodeError, StepladderError) as error:
        source = f"--token-file {file}" if file is not None else "STEPLADDER_TOKEN"
        raise StepladderError(f"{source} must hold a token and nothing else: one word, printable ASCII") from error


def _open(index: str, world_seed: int) -> tuple[Retriever, Mapping[str, object]]:
    """An index, and what `/info` tells about it; one of a data set lives in memory."""
    if index not in DATA_SETS:
        folder = path_of(index)
        return open_index(folder), asdict(index_info(folder))
    passages = open_data(index, seed=world_seed).passages or ()
    info = {"kind": "bm25", "passages": len(passages), "source": index, "settings": {"world_seed": world_seed}}
    return BM25Index.from_passages(passages), info
