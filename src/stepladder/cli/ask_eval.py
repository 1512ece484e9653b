"""`ask` answers one question in front of you; `eval` answers many and scores them."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder import __version__
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
    AsJson,
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
    RunPath,
    Seed,
    SharedK,
    SharedWorldSeed,
    TopP,
    engine_and_model,
    open_engine,
    path_of,
    shared_settings,
)
from stepladder.core.errors import StepladderError
from stepladder.core.io.records import dumps
from stepladder.core.requests import Algorithm
from stepladder.core.seeding import seed_of
from stepladder.core.trace import Question, StopReason, Trajectory
from stepladder.core.trace_printer import TracePrinter, printable
from stepladder.data import DataSet
from stepladder.driver import Driver
from stepladder.driver.progress import Progress
from stepladder.evaluate.evaluator import check_free, compare, evaluate, load_scores
from stepladder.explore.episode import episode, watched
from stepladder.explore.guided import guided
from stepladder.pipeline.resources import RunContext
from stepladder.reporting.eval_table import comparison_line, print_summary
from stepladder.retrieval.factory import info_of

out = Console()


def ask(
    question: Annotated[
        str | None, typer.Argument(help="The question. Without one, an example from the data is asked.")
    ] = None,
    run: RunPath = None,
    agent: AgentName = None,
    engine: EngineName = None,
    model: ModelName = None,
    base_url: BaseUrl = None,
    api: ApiName = Api.chat,
    device: Device = None,
    dtype: DType = None,
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
    seed: Seed = 0,
    world_seed: SharedWorldSeed = None,
    as_json: AsJson = False,
) -> None:
    """Answer one question and show each step as it happens."""
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
    settings = context.episode(chosen_by.settings.temperature if chosen_by else temperature or 0.0, top_p)
    engine, model = engine_and_model(run, engine, model, base_url)
    own_corpus = shared.data.index is not None and question is not None and engine != "gold"
    asked = _find_question(question, None if own_corpus else context.data, engine)
    if chosen_by is not None and chosen_by.settings.by == "gold" and not asked.answers:
        raise StepladderError("--guide gold knows the questions of its data set alone, and this is none of them")
    retriever = context.retriever
    narrator = TracePrinter(Console(stderr=True) if as_json else out)
    narrator.question(asked)
    if run is None and data is None:
        _tell_a_mixture(own_question=not asked.answers, own_texts=shared.data.index is not None)

    def job() -> Algorithm[Trajectory]:
        own = seed_of(seed, asked.id)
        if chosen_by is None:
            return watched(episode(context.agent, asked, settings, own), narrator.show)
        played = guided(context.agent, asked, settings, chosen_by.settings.guide(), own)
        # What other strategies have in hand while they work is not what they choose in the end.
        return watched(played, narrator.show) if chosen_by.settings.guide().strategy == "actions" else played

    options = {"device": shared.device, "dtype": shared.dtype}
    with (
        closing(context),
        open_engine(engine, context.agent, model, base_url, api, **options) as writer,
        opened_scorer(chosen_by, shared) as scorer,
    ):
        (outcome,) = Driver(writer, retriever, scorer).run([job])
    if outcome.failure is not None:
        raise StepladderError(outcome.failure.reason)
    assert outcome.value is not None
    narrator.show(outcome.value)
    if as_json:
        typer.echo(dumps(outcome.value))


def evaluate_command(
    run: RunPath = None,
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
    split: Annotated[
        str | None, typer.Option("--split", help="train, dev or test (the default); a question file has no splits.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first so many questions.")] = None,
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
    seed: Seed = 0,
    world_seed: SharedWorldSeed = None,
    out_folder: Annotated[
        Path | None, typer.Option("--out", parser=path_of, help="Folder for summary, rows and trajectories.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an evaluation that is there.")] = False,
    against: Annotated[
        Path | None,
        typer.Option("--against", parser=path_of, help="A saved evaluation to compare with, paired."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a split of questions and score them, with 95% intervals."""
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
    settings = context.episode(chosen_by.settings.temperature if chosen_by else temperature or 0.0, top_p)
    if out_folder is not None:
        check_free(out_folder, overwrite=overwrite)
    other = load_scores(against) if against is not None else None
    engine, model = engine_and_model(run, engine, model, base_url)
    split = split or _usual_split(context.data)
    questions = context.split(split)[:limit]
    named = data or shared.data.name or context.data.name
    reached = {row.question_id for row in other or () if row.stop is not StopReason.CANCELLED}
    if other is not None and reached.isdisjoint(question.id for question in questions):
        raise StepladderError(f"{against} is of other questions: it has none of {named} {split}")
    retriever = context.retriever
    searched = shared.data.index
    held = info_of(searched) if searched is not None else None  # now: a server may be gone when all is played
    options = {
        "device": shared.device,
        "dtype": shared.dtype,
        "max_batch": shared.batch_size,
        "concurrency": concurrency,
    }
    with (
        closing(context),
        open_engine(engine, context.agent, model, base_url, api, **options) as writer,
        opened_scorer(chosen_by, shared) as scorer,
        Progress("Evaluating", len(questions)) as watch,
    ):
        driver = Driver(writer, retriever, scorer)
        by = chosen_by.settings.guide() if chosen_by is not None else None
        result = evaluate(driver, context.agent, questions, settings, guide=by, seed=seed, watch=watch)
    summary = result.summary()
    description = {
        "agent": shared.agent,
        "engine": engine,
        "model": model,
        "base_url": base_url,
        "api": api.value,
        "device": shared.device,
        "dtype": shared.dtype,
        "data": named,
        "split": split,
        "limit": limit,
        "index": searched and {"place": searched, "checksum": held and held.checksum},
        "seed": seed,
        "world_seed": shared.data.world_seed,
        "settings": asdict(settings),
        "guide": chosen_by and {**chosen_by.settings.told(), "reward": chosen_by.reward},
        "version": __version__,
    }
    not_saved = None
    if out_folder is not None:  # first of all, so that nothing that happens while printing can lose it
        try:
            result.save(out_folder, description, overwrite=overwrite)
        except StepladderError as error:
            not_saved = error
    comparisons = {}
    played = {row.question_id for row in result.scores if row.stop is not StopReason.CANCELLED}
    if other is not None and not played.isdisjoint(reached):
        comparisons = {metric: compare(result.scores, other, metric) for metric in ("em", "f1")}
    if as_json:
        versus = {"against": {name: asdict(each) for name, each in comparisons.items()}} if comparisons else {}
        typer.echo(json.dumps({**description, **summary.as_json(), **versus}, indent=2))
    else:
        print_summary(out, summary, f"{shared.agent} by {model or engine} on {named} {split}")
        for metric, comparison in comparisons.items():
            out.print(comparison_line(comparison, metric), highlight=False)
    if not_saved is not None:
        raise not_saved
    if out_folder is not None:
        Console(stderr=True).print(f"written to {printable(str(out_folder))}", highlight=False, soft_wrap=True)
    if result.stopped_by is not None:
        raise result.stopped_by
    if summary.stops.get(StopReason.FAILED.value) == summary.questions:
        raise StepladderError(f"every episode failed: {next(iter(summary.failures))}")


def _usual_split(data: DataSet) -> str:
    """The split to evaluate when none was named: test, or the only one."""
    if "test" in data.questions:
        return "test"
    first, *others = data.questions
    if others:
        raise StepladderError(f"{data.name} has no test split: say --split {' or '.join((first, *others))}")
    return first


def _tell_a_mixture(*, own_question: bool, own_texts: bool) -> None:
    """Say where the question is the user's and the texts are Atlas's, or the other way round."""
    if own_question == own_texts:
        return
    told = "Atlas is searched, the encyclopedia that comes with Stepladder; --index FOLDER searches texts of your own"
    if own_texts:
        told = "the question is one of Atlas, the encyclopedia that comes with Stepladder, and the texts are your own"
    Console(stderr=True).print(f"[dim]{told}[/]", highlight=False, soft_wrap=True)


def _find_question(text: str | None, data: DataSet | None, engine: str) -> Question:
    """The question of the data set with that text or id, the data set's first one, or one of the user's own."""
    known = [question for group in data.questions.values() for question in group] if data is not None else []
    if text is not None and not text.strip():
        raise StepladderError("the question is empty")
    if text is None:
        assert data is not None
        return data.questions["test" if "test" in data.questions else next(iter(data.questions))][0]
    for question in known:
        if text in (question.text, question.id):
            return question
    if engine == "gold":
        assert data is not None
        raise StepladderError(
            f"the gold engine knows only the questions of {data.name}, and {text!r} is none of them. "
            f"Leave the question out for an example, or choose a model: --model FOLDER"
        )
    return Question("asked", text, ())
