"""`index build`, `index search`, `index info`, `index check`."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.declarations import OUT, argument, given, listed, option, path_option, print_json, say
from stepladder.cli.options import AsJson, Rerank, TopK, WorldSeed
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.memory import parse_bytes
from stepladder.core.trace import Passage
from stepladder.core.trace_printer import printable
from stepladder.core.unicode import replace_surrogates
from stepladder.data import DATA_SETS, PUBLISHED, is_dataset_name, load_dataset
from stepladder.driver.progress import Phases
from stepladder.pipeline.recipe import override
from stepladder.retrieval.factory import load_retriever, retriever_info
from stepladder.retrieval.index.build import build_index
from stepladder.retrieval.index.manifest import IndexInfo, check_index
from stepladder.retrieval.index.registry import INDEX_KINDS

app = typer.Typer(help="Build an index from a corpus, search it, inspect it, check its files.", no_args_is_help=True)

IndexLocation = Annotated[str, argument("INDEX", "Index folder, or URLs of search servers joined by commas.")]


def load_passages(data: str, world_seed: int) -> Sequence[Passage]:
    """The passages of one or several data sets."""
    passages = load_dataset(data, seed=world_seed).passages
    if passages is None:
        raise StepladderError(f"{data} comes without passages: give a corpus to index")
    return passages


@app.command("build")
def index_build(
    corpus: Annotated[
        str,
        argument(
            "CORPUS",
            "A file, folder or pattern (.jsonl, .parquet, .tsv, .txt, .md); or the passages of data sets: "
            f"{listed((*DATA_SETS, *PUBLISHED))}; join several with +.",
        ),
    ],
    folder: Annotated[Path, path_option("DIR", "Index folder.", flags="--out")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")] = False,
    words: Annotated[int, option("N", "Words per passage of a split text.", min=1)] = 100,
    overlap: Annotated[int, option("N", "Words shared with the previous passage.", min=0)] = 20,
    kind: Annotated[str, option("NAME", f"{listed(INDEX_KINDS)}; bm25 combines with any other: bm25+hnsw.")] = "bm25",
    encoder: Annotated[
        str | None, option("NAME", "Embedding model: a folder or a Hugging Face name.", "minilm")
    ] = None,
    device: Annotated[str | None, option("NAME", "Device of the encoder: auto, cpu, cuda.", "auto")] = None,
    memory: Annotated[str, option("SIZE", "Memory limit of the build, without the encoder.")] = "4GB",
    changes: Annotated[
        list[str] | None,
        option("NAME=VALUE", "Any other setting of the index: k1=0.9, pooling=cls ...", "none", flags="--set"),
    ] = None,
    world_seed: WorldSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Build an index from rows with id and contents (or id, title and text), or from texts, which are split.

    Embedding takes a while. The same command resumes an interrupted build.
    """
    settings: Any = given(encoder=encoder, device=device)
    for change in changes or ():
        settings = override(settings, change)
    source: Path | Sequence[Passage] = expand_path(corpus)
    if is_dataset_name(corpus):
        source = load_passages(corpus, world_seed)
    with Phases() as watch:
        info = build_index(
            source,
            folder,
            kind,
            source=corpus,
            overwrite=overwrite,
            words=words,
            overlap=overlap,
            progress=watch,
            memory=parse_bytes(memory),
            **settings,
        )
    _print_info(info, folder, as_json)


@app.command("search")
def index_search(
    location: IndexLocation,
    query: Annotated[str, argument("QUERY", "The search query.")],
    topk: TopK = 3,
    rerank: Rerank = None,
    as_json: AsJson = False,
) -> None:
    """Show the best passages for a query."""
    with closing(load_retriever(location, rerank=rerank)) as retriever:
        (found,) = retriever.search([replace_surrogates(query)], topk)
    if as_json:
        print_json([asdict(passage) for passage in found])
        return
    for passage in found:
        score = " " * 8 if passage.score is None else f"{passage.score:8.3f}"
        say(f"[bold]{score}[/]  {printable(passage.title)} [dim]({printable(passage.id)})[/]")
        say(f"          {printable(passage.text)}")
    if not found:
        say("no passage found")


@app.command("info")
def index_show(location: IndexLocation, as_json: AsJson = False) -> None:
    """Show what an index holds and how it was built."""
    info = retriever_info(location)
    if info is None:
        raise StepladderError(f"{location} has no /info, or one of another format")
    _print_info(info, location, as_json)


@app.command("check")
def index_check(folder: Annotated[Path, argument("DIR", "Index folder.")], as_json: AsJson = False) -> None:
    """Read all files of an index and compare them with what was built."""
    with Phases() as watch:
        info = check_index(expand_path(folder), watch)
    if as_json:
        print_json({"files": len(info.files), "bytes": info.size, "damaged": []})
    else:
        say(f"{printable(str(folder))}: {len(info.files)} files, {info.size / 1e6:,.1f} MB, all as they were built")


def _print_info(info: IndexInfo, location: str | Path, as_json: bool) -> None:
    if as_json:
        print_json(asdict(info))
        return
    settings = ", ".join(f"{name} {value}" for name, value in info.settings.items() if value != "")
    name = printable(str(location))
    OUT.print(f"[bold]{name}[/]: {info.kind}, {info.passages:,} passages, {info.size / 1e6:,.1f} MB", highlight=False)
    say(f"from {printable(info.source)} on {info.created}; {printable(settings)}")
    if info.left_out:
        say(f"skipped: {listed(f'{count:,} {name}' for name, count in info.left_out.items())}")
    say(f"checksum {info.checksum}")
