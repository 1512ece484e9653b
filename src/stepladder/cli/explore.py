"""`explore` grows search trees, `pairs` makes preference pairs of them, `export` hands these to other programs.

The first two are stages: they are added to a run, or begin one.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from stepladder.cli.options import (
    AgentName,
    AsJson,
    DataName,
    IndexPlace,
    ModelName,
    Overrides,
    SharedK,
    SharedWorldSeed,
    Update,
    listed,
    path_of,
)
from stepladder.cli.recipes import RunToExtendOrNone, StageName, extended, given, new_run, nothing_yet, read
from stepladder.cli.train import carry_out
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.records import read_records
from stepladder.core.trace import Pair
from stepladder.core.trace_printer import printable
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.resources import RunContext
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.search_config import PRESETS, ExploreConfig
from stepladder.pipeline.stage import PAIRS, TREES
from stepladder.pipeline.stages.explore import dry_run as dry_run_growth
from stepladder.pipeline.stages.pairs import PairConfig, dry_run
from stepladder.preferences.export import EXPORTS, SPLITS, export, read_rag_proguide

if TYPE_CHECKING:
    from stepladder.judges.llm.spend.estimate import Estimate

out = Console()

JudgeModel = Annotated[
    str | None,
    typer.Option("--judge-model", help="A model as judge: its name at a server, or a model folder to play here."),
]
JudgeUrl = Annotated[
    str | None, typer.Option("--judge-url", help="URL of the judge's OpenAI-compatible server; OpenAI's unless given.")
]
BudgetText = Annotated[
    str | None,
    typer.Option("--budget", help="The most a paid judge may cost, over all attempts: 5usd, 300ktok, 2Mtok."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what a model as judge would cost, and ask it nothing.")]
Prices = Annotated[
    Path | None, typer.Option("--prices", parser=path_of, help="A YAML file of prices, added to those that are known.")
]


def explore_command(
    run: RunToExtendOrNone = None,
    folder: Annotated[
        Path | None, typer.Option("--out", parser=path_of, help="Without --run: folder of a run to begin.")
    ] = None,
    model: ModelName = None,
    agent: AgentName = None,
    data: DataName = None,
    index: IndexPlace = None,
    k: SharedK = None,
    world_seed: SharedWorldSeed = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of all that is random.")] = None,
    questions: Annotated[int | None, typer.Option("--questions", min=1, help="Questions to explore.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", help=f"Constants to begin from: {listed(PRESETS)}.")] = None,
    simulations: Annotated[int | None, typer.Option("--simulations", min=1, help="Simulations a tree.")] = None,
    width: Annotated[int | None, typer.Option("--width", min=1, help="Steps sampled from a state.")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", min=0.0, help="Of these steps.")] = None,
    evaluate: Annotated[
        str | None, typer.Option("--evaluate", help="What values a leaf: rollout, gold or llm.")
    ] = None,
    judge_model: JudgeModel = None,
    judge_url: JudgeUrl = None,
    budget: BudgetText = None,
    prices: Prices = None,
    estimate_only: DryRun = False,
    name: StageName = None,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Grow search trees: which steps lead to a right answer. --set changes any other setting of the stage."""
    llm = _llm(judge_model, judge_url, budget, prices)
    entry = given(
        kind="explore",
        preset=preset,
        questions=questions,
        simulations=simulations,
        width=width,
        temperature=temperature,
        evaluate=evaluate or ("llm" if llm else None),
        llm=llm or None,
    )
    if (run is None) == (folder is None):
        raise StepladderError("say --run DIR to go on with a run, or --out DIR to begin one")
    name = name or "explore"
    begun_with = given(model=model, agent=agent, data=data, index=index, k=k, world_seed=world_seed, seed=seed)
    if run is None:
        recipe = read(new_run("explore", {name: entry}, **begun_with), name, overrides)
    elif begun_with:
        option = next(iter(begun_with)).replace("_", "-")
        raise StepladderError(f"--{option} belongs to the run {run}, and was said when it began: leave it out")
    else:
        recipe = extended(run, name, entry, overrides)
    if estimate_only:
        settings = _stage(recipe, name).settings
        assert isinstance(settings, ExploreConfig)
        _show_estimate(dry_run_growth(settings, RunContext(recipe.shared)), as_json)
    else:
        carry_out(recipe, run or folder or Path(), update, as_json, only=name)


def pairs_command(
    run: Annotated[Path, typer.Option("--run", parser=path_of, help="A run with trees.")],
    judge: Annotated[
        str | None,
        typer.Option(
            "--judge", help="Who prefers: spre (default), mc or q (values of the trees), gold, llm (a model)."
        ),
    ] = None,
    margin: Annotated[
        float | None, typer.Option("--margin", help="Least difference of two values, or of two scores (--mode score).")
    ] = None,
    balance: Annotated[
        str | None, typer.Option("--balance", help="Keep groups alike: kind, depth or kind,depth.")
    ] = None,
    judge_model: JudgeModel = None,
    judge_url: JudgeUrl = None,
    mode: Annotated[
        str | None, typer.Option("--mode", help="How a model is asked: choice (default), ranking or score.")
    ] = None,
    order: Annotated[
        str | None,
        typer.Option("--order", help="How siblings are listed to a model: made, reversed or both (default)."),
    ] = None,
    budget: BudgetText = None,
    prices: Prices = None,
    estimate_only: DryRun = False,
    name: StageName = None,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Make preference pairs of a run's trees: two steps from one state, of which one is better."""
    llm = _llm(judge_model, judge_url, budget, prices, mode=mode, order=order)
    if margin is not None and mode == "score":
        llm["score_margin"], margin = margin, None
    if margin is not None and (llm or judge in ("gold", "llm")):
        raise StepladderError("--margin is about values (--judge spre, mc or q) or scores (--mode score): leave it out")
    entry = given(
        kind="pairs",
        judge=judge or ("llm" if llm else None),
        margin=margin,
        balance=None if balance is None else [group.strip() for group in balance.split(",")],
        llm=llm or None,
    )
    name = name or "pairs"
    recipe = extended(run, name, entry, overrides)
    if not estimate_only:
        carry_out(recipe, run, update, as_json, only=name)
        return
    stage = _stage(recipe, name)
    assert isinstance(stage.settings, PairConfig)
    grown = RunFolder.open(run).done(stage.inputs[TREES])
    if grown is None:
        raise nothing_yet(run, TREES)
    trees = run / grown.name / grown.outputs[TREES]
    _show_estimate(dry_run(stage.settings, trees, run / name), as_json)


def export_command(
    source: Annotated[str, typer.Argument(help="A run with pairs, or a file of RAG-ProGuide (.json, .jsonl, .gz).")],
    folder: Annotated[Path, typer.Argument(parser=path_of, help="Folder to write.", metavar="DIR")],
    to: Annotated[
        str, typer.Option("--to", help="; ".join(f"{name}: {each.summary}" for name, each in EXPORTS.items()))
    ],
    model: Annotated[
        str | None, typer.Option("--model", help="The model to train, for formats with a training configuration.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The run's stage whose pairs are meant; the newest unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write preference pairs in a format that other programs read."""
    path = path_of(source)
    if path.is_file():
        if name is not None:
            raise StepladderError(f"--name is about the stages of a run, and {path} is a file: leave it out")
        origin, pairs = path.name, {"train": read_rag_proguide(path)}
    else:
        made = _made_pairs(path, name)
        origin = f"{path.resolve().name}/{made.parent.name}"
        pairs = {split: read_records(made / f"{split}.jsonl", Pair) for split in SPLITS}
    done = export(to, pairs, folder, source=origin, model=model)
    if as_json:
        told = {"folder": str(folder), "source": origin, "pairs": done.pairs, "rows": done.rows, "files": done.files}
        typer.echo(json.dumps(told, indent=2))
        return
    held = ", ".join(f"{count:,} {split}" for split, count in done.pairs.items())
    out.print(
        f"{printable(str(folder))}: {held} pairs of {printable(origin)} as {to}; README.md says how to use them",
        highlight=False,
        soft_wrap=True,
    )


def _made_pairs(path: Path, name: str | None) -> Path:
    """The folder of pairs that a stage of a run has made; of the newest one unless it is named."""
    run = RunFolder.open(path)
    records = [record for stage in run.recipe().stages if (record := run.done(stage.name)) is not None]
    made = {record.name: path / record.name / record.outputs[PAIRS] for record in records if PAIRS in record.outputs}
    if not made:
        raise nothing_yet(path, PAIRS)
    if name is not None and name not in made:
        raise unknown_name("stage with pairs", name, made)
    return made[name or list(made)[-1]]


def _llm(model: str | None, url: str | None, budget: str | None, prices: Path | None, **more: Any) -> dict[str, Any]:
    """The settings of a model as judge; empty when no model was named."""
    settings = given(model=model, url=url, budget=budget, prices=prices, **more)
    if settings and model is None:
        option = next(iter(settings)).replace("_", "-")
        raise StepladderError(f"--{option} is about a model as judge: add --judge-model")
    return settings


def _stage(recipe: Recipe, name: str) -> Stage:
    return next(stage for stage in recipe.stages if stage.name == name)


def _show_estimate(cost: "Estimate", as_json: bool) -> None:
    most = cost.tokens_at_most.read + cost.tokens_at_most.written
    if as_json:
        tokens = {"tokens_read": cost.tokens.read, "tokens_written": cost.tokens.written, "tokens_at_most": most}
        dollars = {"usd": cost.usd, "usd_at_most": cost.usd_at_most}
        typer.echo(json.dumps({"calls": cost.calls, "recalled": cost.recalled, **tokens, **dollars}, indent=2))
        return
    known = cost.usd is not None and cost.usd_at_most is not None
    price = f"about ${cost.usd:,.2f}, at most ${cost.usd_at_most:,.2f}" if known else "not known for this model"
    out.print(
        f"calls: {cost.calls:,} ({cost.recalled:,} more are answered by replies at hand)\n"
        f"tokens: about {cost.tokens.read:,} read and {cost.tokens.written:,} written, at most {most:,} in all\n"
        f"price: {price}",
        highlight=False,
        soft_wrap=True,
    )
