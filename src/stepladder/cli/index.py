"""`index build`, `index search`, `index info`."""

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stepladder.cli.options import AsJson, K, WorldSeed, listed, passages_of, path_of
from stepladder.core.errors import StepladderError
from stepladder.core.trace import Passage
from stepladder.core.trace_printer import printable
from stepladder.data import DATA_SETS, PUBLISHED, names_data
from stepladder.driver.progress import Phases
from stepladder.pipeline.recipe import override
from stepladder.retrieval.factory import info_of, open_retriever
from stepladder.retrieval.index.build import build_index
from stepladder.retrieval.index.manifest import IndexInfo
from stepladder.retrieval.index.memory_budget import bytes_of
from stepladder.retrieval.index.registry import KINDS

app = typer.Typer(help="Turn a corpus into an index, search it, look at it.", no_args_is_help=True)
out = Console()

ThisIndex = Annotated[
    str, typer.Argument(metavar="INDEX", help="Folder of the index, or URLs of search servers joined by commas.")
]


@app.command("build")
def index_build(
    corpus: Annotated[
        str,
        typer.Argument(
            help="A file, folder or pattern (.jsonl, .parquet, .tsv, .txt, .md); or the passages of data sets: "
            f"{listed((*DATA_SETS, *PUBLISHED))}, several joined by +."
        ),
    ],
    folder: Annotated[Path, typer.Option("--out", parser=path_of, help="Folder of the index.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    words: Annotated[
        int, typer.Option("--words", min=1, help="Most words of a passage that a text is split into.")
    ] = 100,
    overlap: Annotated[int, typer.Option("--overlap", min=0, help="Words that it shares with the one before.")] = 20,
    kind: Annotated[
        str, typer.Option("--kind", help=f"{listed(KINDS)}; bm25 goes with any of the others: bm25+hnsw.")
    ] = "bm25",
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", help="Model of the embeddings: minilm (the default), a folder or a hub name."),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="Where passages are encoded: auto, cpu, cuda.")] = None,
    memory: Annotated[str, typer.Option("--memory", help="What building may take beside the encoder.")] = "4GB",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any other setting of the kind: k1=0.9, pooling=cls ..."),
    ] = None,
    world_seed: WorldSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Build an index: of rows with id and contents, or id, title and text; or of texts, which are split.

    Embeddings take a while: a build that was cut off goes on when the same command is given again.
    """
    settings: Any = {name: value for name, value in (("encoder", encoder), ("device", device)) if value is not None}
    for change in changes or ():
        settings = override(settings, change)
    source: Path | Sequence[Passage] = path_of(corpus)
    if names_data(corpus):
        source = passages_of(corpus, world_seed)
    with Phases() as watch:
        info = build_index(
            source,
            folder,
            kind,
            source=corpus,
            overwrite=overwrite,
            words=words,
            overlap=overlap,
            watch=watch,
            memory=bytes_of(memory),
            **settings,
        )
    _show_index(info, folder, as_json)


@app.command("search")
def index_search(
    place: ThisIndex,
    query: Annotated[str, typer.Argument(help="What to look for.")],
    k: K = 3,
    rerank: Annotated[
        str | None, typer.Option("--rerank", help="A cross-encoder that puts what is found in order anew.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the best passages for a query."""
    with closing(open_retriever(place, rerank=rerank)) as retriever:
        (found,) = retriever.search([query], k)
    if as_json:
        typer.echo(json.dumps([asdict(passage) for passage in found], indent=2))
        return
    for passage in found:
        out.print(f"[bold]{_score(passage)}[/]  {printable(passage.title)} [dim]({printable(passage.id)})[/]", highlight=False)
        out.print(f"          {printable(passage.text)}", highlight=False, soft_wrap=True)
    if not found:
        out.print("nothing was found", highlight=False)


@app.command("info")
def index_show(place: ThisIndex, as_json: AsJson = False) -> None:
    """What an index holds, and how it was made."""
    info = info_of(place)
    if info is None:
        raise StepladderError(f"{place} does not tell what it searches in: it has no /info, or one of another kind")
    _show_index(info, place, as_json)


def _score(passage: Passage) -> str:
    return " " * 8 if passage.score is None else f"{passage.score:8.3f}"


def _show_index(info: IndexInfo, place: str | Path, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(asdict(info), indent=2))
        return
    made = ", ".join(f"{name} {value}" for name, value in info.settings.items() if value != "")
    out.print(
        f"[bold]{printable(str(place))}[/]: {info.kind}, {info.passages:,} passages, {info.size / 1e6:,.1f} MB",
        highlight=False,
    )
    out.print(f"from {printable(info.source)} on {info.created}; {printable(made)}", highlight=False, soft_wrap=True)
    if info.left_out:
        counts = ", ".join(f"{count:,} {name}" for name, count in info.left_out.items())
        out.print(f"left out: {counts}", highlight=False)
    out.print(f"checksum {info.checksum}", highlight=False)
