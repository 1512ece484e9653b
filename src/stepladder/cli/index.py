"""`index build`, `index add`, `index import`, `index search`, `index info`, `index check`."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.declarations import (
    OUT,
    OptionGroup,
    argument,
    given,
    listed,
    option,
    path_option,
    print_json,
    say,
    takes_groups,
)
from stepladder.cli.options import AsJson, Fuse, RankConstant, RayOptions, Rerank, TopK, WorldSeed
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.core.memory import parse_bytes
from stepladder.core.trace import Passage
from stepladder.core.trace_printer import printable
from stepladder.core.unicode import replace_surrogates
from stepladder.data import DATA_SETS, PUBLISHED, is_dataset_name, load_dataset
from stepladder.driver.progress import Phases
from stepladder.pipeline.recipe import override
from stepladder.pipeline.workers.encoding import encoding_on_workers
from stepladder.retrieval.factory import load_retriever, retriever_info
from stepladder.retrieval.hybrid import FusionConfig
from stepladder.retrieval.index.add import add_to_index
from stepladder.retrieval.index.build import build_index
from stepladder.retrieval.index.manifest import UNREAD, IndexInfo, check_index, index_info, unread_files
from stepladder.retrieval.index.registry import INDEX_KINDS, parse_kinds

app = typer.Typer(
    help="Build or import an index, add to it, search it, inspect it, check its files.", no_args_is_help=True
)

IndexLocation = Annotated[
    str, argument("INDEX", "Index folder, or URLs of search servers joined by commas; several joined by + are fused.")
]
#: Index kinds that are built. The other one is imported.
_BUILT = [kind for kind in INDEX_KINDS if kind != "faiss"]
Changes = Annotated[
    list[str] | None,
    option("NAME=VALUE", "Any other setting of the index: k1=0.9, pooling=cls ...", "none", flags="--set"),
]
CorpusLocation = Annotated[
    str,
    argument(
        "CORPUS",
        "A file, folder or pattern (.jsonl, .parquet, .tsv, .txt, .md, .pdf, .html, .docx, .csv); or the passages of "
        f"data sets: {listed((*DATA_SETS, *PUBLISHED))}; join several with +.",
    ),
]
Device = Annotated[str | None, option("NAME", "Device of the encoder: auto, cpu, cuda.", "auto")]
Memory = Annotated[str, option("SIZE", "Memory limit of the build, without the encoder.")]
#: Files that could not be read, at most this many of which are printed.
_LISTED = 20


@dataclass(frozen=True, slots=True)
class SplitOptions(OptionGroup):
    """How texts and documents are split."""

    words: Annotated[int, option("N", "Words per passage of a split text.", min=1)] = 100
    overlap: Annotated[int, option("N", "Words shared with the previous passage.", min=0)] = 20


def load_passages(data: str, world_seed: int) -> Sequence[Passage]:
    """The passages of one or several data sets."""
    passages = load_dataset(data, seed=world_seed).passages
    if passages is None:
        raise StepladderError(f"{data} comes without passages: give a corpus to index")
    return passages


def _source(corpus: str, world_seed: int) -> Path | Sequence[Passage]:
    return load_passages(corpus, world_seed) if is_dataset_name(corpus) else expand_path(corpus)


@app.command("build")
@takes_groups
def index_build(
    *,
    corpus: CorpusLocation,
    folder: Annotated[Path, path_option("DIR", "Index folder.", flags="--out")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")] = False,
    splitting: SplitOptions,
    kind: Annotated[str, option("NAME", f"{listed(_BUILT)}; bm25 combines with any other: bm25+hnsw.")] = "bm25",
    encoder: Annotated[
        str | None, option("NAME", "Embedding model: a folder or a Hugging Face name.", "minilm")
    ] = None,
    device: Device = None,
    memory: Memory = "4GB",
    changes: Changes = None,
    world_seed: WorldSeed = 0,
    as_json: AsJson = False,
    cluster: RayOptions,
) -> None:
    """Build an index from rows with id and contents (or id, title and text), or from texts and documents.

    Texts and documents are split into passages. Those that cannot be read are listed with the reason. Embedding takes a
    while, which --ray spreads over processes and machines. The same command resumes an interrupted build.
    """
    settings: Any = given(encoder=encoder, device=device)
    for change in changes or ():
        settings = override(settings, change)
    if cluster.ray is not None and not any(each.dense for each in parse_kinds(kind).values()):
        raise StepladderError(f"--ray has no effect on an index of the kind {kind}, which has no embeddings")
    folders = [str(path.absolute()) for path in [expand_path(encoder or "")] if encoder and path.is_dir()]
    with encoding_on_workers(cluster.config(), folders), Phases() as watch:
        info = build_index(
            _source(corpus, world_seed),
            folder,
            kind,
            source=corpus,
            overwrite=overwrite,
            words=splitting.words,
            overlap=splitting.overlap,
            progress=watch,
            memory=parse_bytes(memory),
            **settings,
        )
    _print_info(info, folder, as_json)


@app.command("add")
@takes_groups
def index_add(
    corpus: CorpusLocation,
    folder: Annotated[Path, path_option("DIR", "Index folder.", flags="--to")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace what the index has of the same files and ids.")
    ] = False,
    *,
    splitting: SplitOptions,
    device: Device = None,
    memory: Memory = "4GB",
    changes: Annotated[
        list[str] | None,
        option("NAME=VALUE", "A setting of the encoding: batch=64, dtype=bf16.", "none", flags="--set"),
    ] = None,
    world_seed: WorldSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Add texts, documents or rows to an index, with the settings it was built with.

    Embeddings of the passages it has are reused. The index stays in place until the new one is complete; the same
    command resumes an interrupted one.
    """
    settings: Any = given(device=device)
    for change in changes or ():
        settings = override(settings, change)
    before = index_info(folder).passages
    with Phases() as watch:
        info = add_to_index(
            _source(corpus, world_seed),
            folder,
            source=corpus,
            replace=replace,
            words=splitting.words,
            overlap=splitting.overlap,
            progress=watch,
            memory=parse_bytes(memory),
            **settings,
        )
    _print_info(info, folder, as_json)
    if not as_json:
        say(f"passages before: {before:,}, now: {info.passages:,}")


@app.command("import")
def index_import(
    file: Annotated[Path, argument("FILE", "A FAISS index, such as e5_Flat.index.")],
    corpus: Annotated[Path, path_option("FILE", "The corpus that it was built from, a .jsonl file.")],
    encoder: Annotated[str, option("NAME", "The encoder that it was built with: a folder or a Hugging Face name.")],
    folder: Annotated[Path, path_option("DIR", "Index folder.", flags="--out")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing index.")] = False,
    device: Device = None,
    changes: Changes = None,
    as_json: AsJson = False,
) -> None:
    """Import a FAISS index that others have built: compare it with its corpus and encoder, and refer to its files.

    Nothing is copied: the FAISS file is memory-mapped, and passages are read from the corpus where they are found.
    """
    from stepladder.retrieval.imported.faiss_import import import_index  # imports PyTorch

    settings: Any = given(encoder=encoder, device=device)
    for change in changes or ():
        settings = override(settings, change)
    with Phases() as watch:
        info = import_index(
            expand_path(file), expand_path(corpus), folder, overwrite=overwrite, progress=watch, **settings
        )
    _print_info(info, folder, as_json)


@app.command("search")
def index_search(
    location: IndexLocation,
    query: Annotated[str, argument("QUERY", "The search query.")],
    topk: TopK = 3,
    rerank: Rerank = None,
    fusion: Fuse = None,
    rank_constant: RankConstant = None,
    as_json: AsJson = False,
) -> None:
    """Show the best passages for a query."""
    fused = FusionConfig.read(given(fusion=fusion, rank_constant=rank_constant))
    with closing(load_retriever(location, rerank=rerank, fusion=fused)) as retriever:
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
    if info.kind == "faiss":  # it refers to files elsewhere
        from stepladder.retrieval.imported.faiss_import import open_corpus

        open_corpus(expand_path(folder)).close()
    if as_json:
        print_json({"files": len(info.files), "bytes": info.size, "damaged": []})
    else:
        say(f"{printable(str(folder))}: {len(info.files)} files, {info.size / 1e6:,.1f} MB, all as they were built")


def _print_info(info: IndexInfo, location: str | Path, as_json: bool) -> None:
    folder = expand_path(location)
    unread = unread_files(folder) if UNREAD in info.files else {}
    if as_json:
        print_json({**asdict(info), **({"unread": unread} if unread else {})})
        return
    settings = ", ".join(f"{name} {value}" for name, value in info.settings.items() if value != "")
    name = printable(str(location))
    OUT.print(f"[bold]{name}[/]: {info.kind}, {info.passages:,} passages, {info.size / 1e6:,.1f} MB", highlight=False)
    say(f"from {printable(info.source)} on {info.created}; {printable(settings)}")
    if info.left_out:
        say(f"skipped: {listed(f'{count:,} {name}' for name, count in info.left_out.items())}")
    for file, reason in list(unread.items())[:_LISTED]:
        say(f"not read: {printable(file)}: {printable(reason)}")
    if len(unread) > _LISTED:
        say(f"not read: {len(unread) - _LISTED:,} more, listed in {printable(str(folder / UNREAD))}")
    say(f"checksum {info.checksum}")
