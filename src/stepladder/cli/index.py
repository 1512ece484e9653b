"""`index build`, `index search`, `index info`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.options import AsJson, K, WorldSeed, listed, path_of
from stepladder.data import DATA_SETS, open_data
from stepladder.narrate import shown
from stepladder.retrieval.index import build_index, open_index
from stepladder.retrieval.manifest import IndexInfo, index_info
from stepladder.trace import Passage

app = typer.Typer(help="Turn a corpus into an index, search it, look at it.", no_args_is_help=True)
out = Console()

ThisIndex = Annotated[Path, typer.Argument(parser=path_of, help="Folder of the index.")]


@app.command("build")
def index_build(
    corpus: Annotated[
        str,
        typer.Argument(help=f"A file, folder or pattern (.jsonl, .parquet, .tsv, .txt, .md), or {listed(DATA_SETS)}."),
    ],
    folder: Annotated[Path, typer.Option("--out", parser=path_of, help="Folder of the index.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    words: Annotated[
        int, typer.Option("--words", min=1, help="Most words of a passage that a text is split into.")
    ] = 100,
    overlap: Annotated[int, typer.Option("--overlap", min=0, help="Words that it shares with the one before.")] = 20,
    world_seed: WorldSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Build a BM25 index: of rows with id and contents, or id, title and text; or of texts, which are split."""
    source: Path | Sequence[Passage] = path_of(corpus)
    if corpus in DATA_SETS:
        source = open_data(corpus, seed=world_seed).passages or ()
    with Console(stderr=True).status(f"Reading {corpus} ...") as status:
        info = build_index(
            source,
            folder,
            source=corpus,
            overwrite=overwrite,
            words=words,
            overlap=overlap,
            watch=lambda doing, done, total: status.update(f"{doing}: {done:,}"),  # noqa: ARG005
        )
    _show_index(info, folder, as_json)


@app.command("search")
def index_search(
    folder: ThisIndex,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    k: K = 3,
    as_json: AsJson = False,
) -> None:
    """Show the best passages for a query."""
    (found,) = open_index(folder).search([query], k)
    if as_json:
        typer.echo(json.dumps([asdict(passage) for passage in found], indent=2))
        return
    for passage in found:
        out.print(
            f"[bold]{passage.score:8.3f}[/]  {shown(passage.title)} [dim]({shown(passage.id)})[/]", highlight=False
        )
        out.print(f"          {shown(passage.text)}", highlight=False, soft_wrap=True)
    if not found:
        out.print("nothing was found", highlight=False)


@app.command("info")
def index_show(
    folder: Annotated[Path, typer.Argument(parser=path_of, help="Folder of the index.")], as_json: AsJson = False
) -> None:
    """What an index holds, and how it was made."""
    _show_index(index_info(folder), folder, as_json)


def _show_index(info: IndexInfo, folder: Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(info), indent=2))
        return
    made = ", ".join(f"{name} {value}" for name, value in info.settings.items())
    out.print(
        f"[bold]{shown(str(folder))}[/]: {info.kind}, {info.passages:,} passages, {info.size / 1e6:,.1f} MB",
        highlight=False,
    )
    out.print(f"from {shown(info.source)} on {info.created}; {shown(made)}", highlight=False, soft_wrap=True)
    if info.left_out:
        counts = ", ".join(f"{count:,} {name}" for name, count in info.left_out.items())
        out.print(f"left out: {counts}", highlight=False)
    out.print(f"checksum {info.checksum}", highlight=False)
