"""The command line: parses, calls, prints. Everything it does can be done from Python with the same names."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stepladder import __version__
from stepladder.agents import AGENTS, Agent, make_agent
from stepladder.data import DATA_SETS, DataSet, open_data
from stepladder.demo import run_demo
from stepladder.doctor import examine
from stepladder.driver import Driver
from stepladder.engines import ENGINES, Engine, make_engine
from stepladder.errors import StepladderError
from stepladder.evaluate.runner import check_free, compare, evaluate, load_scores
from stepladder.evaluate.table import comparison_line, print_summary
from stepladder.explore.episode import EpisodeSettings, episode, watched
from stepladder.narrate import Narrator, shown
from stepladder.progress import Progress
from stepladder.request import Algorithm, Sampling
from stepladder.retrieval.base import Retriever
from stepladder.retrieval.bm25 import BM25Index
from stepladder.retrieval.index import IndexInfo, build_index, index_info, open_index
from stepladder.seeding import seed_of
from stepladder.trace import Passage, Question, StopReason, TraceError, Trajectory, dumps

app = typer.Typer(
    help="Train language models to answer hard questions by searching, one graded step at a time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
index_app = typer.Typer(help="Turn a corpus into an index, search it, look at it.", no_args_is_help=True)
app.add_typer(index_app, name="index")

out = Console()


def main(arguments: list[str] | None = None) -> int:
    """Entry point: mistakes of the user end in one clear line, not in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character shows a question mark instead
            stream.reconfigure(errors="replace")
    try:
        app(arguments, standalone_mode=True)
        sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (StepladderError, TraceError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
    return 0


def _complain(message: str) -> int:
    Console(stderr=True).print(f"[bold red]error:[/] {shown(message)}", soft_wrap=True, highlight=False)
    return 2


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepladder {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...


# --- options that several commands share -------------------------------------------------------------------


class Api(StrEnum):
    """The two ways to ask an OpenAI-compatible server."""

    chat = "chat"
    completions = "completions"


def _path(text: str) -> Path:
    return Path(text).expanduser()


def _listed(names: Any) -> str:
    return ", ".join(names)


AgentName = Annotated[str, typer.Option("--agent", help=f"How to work on a question: {_listed(AGENTS)}.")]
EngineName = Annotated[str, typer.Option("--engine", help=f"Who writes: {_listed(ENGINES)}.")]
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
DataName = Annotated[str, typer.Option("--data", help=f"{_listed(DATA_SETS)}, or a question file (.jsonl, .jsonl.gz).")]
IndexFolder = Annotated[Path | None, typer.Option("--index", parser=_path, help="Index folder; Atlas brings its own.")]
K = Annotated[int, typer.Option("-k", "--k", min=1, help="Passages a search returns.")]
MaxSteps = Annotated[int, typer.Option("--max-steps", min=1, help="Most steps a question.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens a step.")]
Temperature = Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Nucleus sampling.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of sampling.")]
WorldSeed = Annotated[int, typer.Option("--world-seed", help="Seed of the Atlas world.")]
ThisIndex = Annotated[Path, typer.Argument(parser=_path, help="Folder of the index.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


# --- commands ----------------------------------------------------------------------------------------------


@app.command()
def demo(
    questions: Annotated[int, typer.Option(min=1, help="Test questions to play.")] = 100,
    seed: Seed = 0,
) -> None:
    """The whole path on this machine: a fictional world, an index, an oracle, an untrained model, scores."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "stepladder" else "stepladder"
    run_demo(out, questions, seed, program)


@app.command()
def ask(
    question: Annotated[
        str | None, typer.Argument(help="The question. Without one, an example from the data is asked.")
    ] = None,
    agent: AgentName = "prorag",
    engine: EngineName = "gold",
    model: ModelName = None,
    base_url: BaseUrl = None,
    api: ApiName = Api.chat,
    device: Device = "auto",
    dtype: DType = "auto",
    data: DataName = "atlas",
    index: IndexFolder = None,
    k: K = 3,
    max_steps: MaxSteps = 12,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    world_seed: WorldSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Answer one question and show each step as it happens."""
    player = make_agent(agent)
    settings = _settings(max_steps, k, temperature, top_p, max_tokens)
    own_corpus = index is not None and question is not None and engine != "gold"
    data_set = None if own_corpus else open_data(data, seed=world_seed)
    asked = _find_question(question, data_set, engine)
    retriever = _retriever(data_set, index, player)
    narrator = Narrator(Console(stderr=True) if as_json else out)
    narrator.question(asked)

    def job() -> Algorithm[Trajectory]:
        return watched(episode(player, asked, settings, seed_of(seed, asked.id)), narrator.show)

    options = {"device": device, "dtype": dtype}
    with _engine(engine, player, model, base_url, api, **options) as writer:
        (outcome,) = Driver(writer, retriever).run([job])
    if outcome.failure is not None:
        raise StepladderError(outcome.failure.reason)
    assert outcome.value is not None
    if as_json:
        typer.echo(dumps(outcome.value))


@app.command(name="eval")
def evaluate_command(
    agent: AgentName = "prorag",
    engine: EngineName = "gold",
    model: ModelName = None,
    base_url: BaseUrl = None,
    api: ApiName = Api.chat,
    device: Device = "auto",
    dtype: DType = "auto",
    batch: Batch = 64,
    concurrency: Concurrency = 32,
    data: DataName = "atlas",
    split: Annotated[
        str | None, typer.Option("--split", help="train, dev or test (the default); a question file has no splits.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many questions.")] = None,
    index: IndexFolder = None,
    k: K = 3,
    max_steps: MaxSteps = 12,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    world_seed: WorldSeed = 0,
    out_folder: Annotated[
        Path | None, typer.Option("--out", parser=_path, help="Folder for summary, rows and trajectories.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an evaluation that is there.")] = False,
    against: Annotated[
        Path | None,
        typer.Option("--against", parser=_path, help="A saved evaluation to compare with, paired."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a split of questions and score them, with 95% intervals."""
    player = make_agent(agent)
    settings = _settings(max_steps, k, temperature, top_p, max_tokens)
    if out_folder is not None:
        check_free(out_folder, overwrite=overwrite)
    other = load_scores(against) if against is not None else None
    data_set = open_data(data, seed=world_seed)
    split = split or ("test" if "test" in data_set.questions else "all")
    questions = data_set.split(split)[:limit]
    if other is not None and not {row.question_id for row in other} & {question.id for question in questions}:
        raise StepladderError(f"{against} is of other questions: it has none of {data} {split}")
    retriever = _retriever(data_set, index, player)
    options = {"device": device, "dtype": dtype, "max_batch": batch, "concurrency": concurrency}
    with (
        _engine(engine, player, model, base_url, api, **options) as writer,
        Progress("Evaluating", len(questions)) as watch,
    ):
        result = evaluate(Driver(writer, retriever), player, questions, settings, seed=seed, watch=watch)
    summary = result.summary()
    description = {
        "agent": agent,
        "engine": engine,
        "model": model,
        "base_url": base_url,
        "api": api.value,
        "device": device,
        "dtype": dtype,
        "data": data,
        "split": split,
        "limit": limit,
        "index": None if index is None else {"folder": str(index), "checksum": index_info(index).checksum},
        "seed": seed,
        "world_seed": world_seed,
        "settings": asdict(settings),
        "version": __version__,
    }
    comparisons = {} if other is None else {metric: compare(result.scores, other, metric) for metric in ("em", "f1")}
    if as_json:
        versus = {"against": {name: asdict(each) for name, each in comparisons.items()}} if comparisons else {}
        typer.echo(json.dumps({**description, **summary.as_json(), **versus}, indent=2))
    else:
        print_summary(out, summary, f"{agent} by {model or engine} on {data} {split}")
        for metric, comparison in comparisons.items():
            out.print(comparison_line(comparison, metric), highlight=False)
    if out_folder is not None:
        result.save(out_folder, description, overwrite=overwrite)
        Console(stderr=True).print(f"written to {shown(str(out_folder))}", highlight=False, soft_wrap=True)
    if result.stopped_by is not None:
        raise result.stopped_by
    if summary.stops.get(StopReason.FAILED.value) == summary.questions:
        raise StepladderError(f"every episode failed: {next(iter(summary.failures))}")


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Versions, devices, what is missing and the command that installs it."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "[green]ok[/]     " if finding.ok else "[dim]absent[/] " if finding.optional else "[red]missing[/]"
            out.print(f"{mark} {finding.what:<14} {shown(finding.state)}", highlight=False, soft_wrap=True)
            if finding.fix:
                out.print(f"{'':<22} [dim]{shown(finding.fix)}[/]", highlight=False, soft_wrap=True)
    if any(not finding.ok and not finding.optional for finding in findings):
        raise typer.Exit(1)


# --- index -------------------------------------------------------------------------------------------------


@index_app.command("build")
def index_build(
    corpus: Annotated[str, typer.Argument(help=f"Corpus file (.jsonl, .jsonl.gz), or one of {_listed(DATA_SETS)}.")],
    folder: Annotated[Path, typer.Option("--out", parser=_path, help="Folder of the index.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    world_seed: WorldSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Build a BM25 index: lines of {"id", "contents"} or {"id", "title", "text"}."""
    source: Path | Sequence[Passage] = _path(corpus)
    if corpus in DATA_SETS:
        source = open_data(corpus, seed=world_seed).passages or ()
    with Console(stderr=True).status(f"Reading {corpus} ...") as status:
        info = build_index(
            source,
            folder,
            source=corpus,
            overwrite=overwrite,
            on_progress=lambda count: status.update(f"Indexing {corpus}: {count:,} passages"),
        )
    _show_index(info, folder, as_json)


@index_app.command("search")
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


@index_app.command("info")
def index_show(
    folder: Annotated[Path, typer.Argument(parser=_path, help="Folder of the index.")], as_json: AsJson = False
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
    out.print(f"checksum {info.checksum}", highlight=False)


# --- what the commands share -------------------------------------------------------------------------------


def _settings(max_steps: int, k: int, temperature: float, top_p: float, max_tokens: int) -> EpisodeSettings:
    try:
        return EpisodeSettings(max_steps, k, Sampling(temperature, top_p, max_tokens))
    except ValueError as error:
        raise StepladderError(str(error)) from error


@contextmanager
def _engine(
    name: str, agent: Agent, model: str | None, base_url: str | None, api: Api, **options: Any
) -> Iterator[Engine]:
    """The engine that was asked for, closed in the end."""
    engine = make_engine(name, agent, model=model, base_url=base_url, api=api.value, **options)
    try:
        yield engine
    finally:
        engine.close()


def _retriever(data: DataSet | None, index: Path | None, agent: Agent) -> Retriever | None:
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


def _find_question(text: str | None, data: DataSet | None, engine: str) -> Question:
    """The question of the data set with that text or id, the data set's first one, or one of the user's own."""
    known = [question for group in data.questions.values() for question in group] if data is not None else []
    if text is not None and not text.strip():
        raise StepladderError("the question is empty")
    if text is None:
        assert data is not None
        return data.questions["test" if "test" in data.questions else "all"][0]
    for question in known:
        if text in (question.text, question.id):
            return question
    if engine == "gold":
        assert data is not None
        raise StepladderError(
            f"the gold engine knows only the questions of {data.name}, and {text!r} is none of them. "
            f"Leave the question out for an example, or choose a model: --engine transformers --model FOLDER"
        )
    return Question("asked", text, ())


if __name__ == "__main__":
    sys.exit(main())
