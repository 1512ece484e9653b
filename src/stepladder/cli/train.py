"""`run` carries out a recipe; `train sft` is a recipe of one stage, written as options."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stepladder.agents import AGENTS
from stepladder.cli.options import (
    AsJson,
    IndexFolder,
    K,
    Overrides,
    Policy,
    RunOut,
    Seed,
    Update,
    WorldSeed,
    listed,
    path_of,
)
from stepladder.data import DATA_SETS
from stepladder.errors import StepladderError
from stepladder.recipe import Recipe, load_recipe, override, shipped
from stepladder.run import run_recipe
from stepladder.run.report import as_json as report_as_json
from stepladder.run.report import print_report

app = typer.Typer(help="Train with a single stage.", no_args_is_help=True)
out = Console()


def run_command(
    recipe: Annotated[str, typer.Argument(help=f"A recipe file (.yaml), or one of: {listed(shipped())}.")],
    folder: RunOut,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Carry out a recipe. The same command again goes on where it was stopped."""
    carry_out(load_recipe(recipe, overrides or ()), folder, update, as_json)


@app.command("sft")
def train_sft_command(
    folder: RunOut,
    model: Policy = "nano",
    agent: Annotated[str, typer.Option("--agent", help=f"The steps to teach: {listed(AGENTS)}.")] = "prorag-brief",
    data: Annotated[
        str, typer.Option("--data", help=f"{listed(DATA_SETS)}, or a question file to train on (.jsonl, .jsonl.gz).")
    ] = "atlas",
    dev: Annotated[
        Path | None,
        typer.Option("--dev", parser=path_of, help="With a question file: another one to watch progress on."),
    ] = None,
    index: IndexFolder = None,
    k: K = 1,
    world_seed: WorldSeed = 0,
    questions: Annotated[int | None, typer.Option("--questions", min=1, help="Questions to train on.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Where transcripts come from: gold, teacher or bootstrap.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option("--teacher", help="URL of the OpenAI-compatible server of a teacher.")
    ] = None,
    teacher_model: Annotated[str | None, typer.Option("--teacher-model", help="The teacher's name there.")] = None,
    epochs: Annotated[float | None, typer.Option("--epochs", help="Times to go through them.")] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate.")] = None,
    lora: Annotated[
        bool, typer.Option("--lora", help="Train small matrices beside the weights, not all weights.")
    ] = False,
    seed: Seed = 0,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Warm up a model on transcripts; --set changes any other setting of the stage."""
    given: dict[str, object] = {
        "questions": questions,
        "source": source or ("teacher" if teacher or teacher_model else None),
        "teacher_url": teacher,
        "teacher_model": teacher_model,
        "epochs": epochs,
        "lr": lr,
        "lora": {} if lora else None,
    }
    by_name = data in DATA_SETS or not path_of(data).is_file()  # a name that is wrong is explained as a name
    if by_name and dev is not None:
        raise StepladderError(f"--dev goes with a question file as --data; {data} is none")
    files = {"train": data, "dev": dev}
    recipe: Any = {
        "name": "sft",
        "seed": seed,
        "policy": model,
        "agent": agent,
        "data": {"world_seed": world_seed, "index": index, **({"name": data} if by_name else files)},
        "search": {"k": k},
        "stages": {"sft": {name: value for name, value in given.items() if value is not None}},
    }
    for change in overrides or ():
        recipe = override(recipe, change.removeprefix("stages.sft."), within=("stages", "sft"))
    carry_out(Recipe.read(recipe, "train sft"), folder, update, as_json)


def carry_out(recipe: Recipe, folder: Path, update: bool, as_json: bool, only: str | None = None) -> None:
    """Run a recipe, or `only` one of its stages, in front of the user, and print what it brought."""
    with stoppable():
        told = Console(stderr=True) if as_json else out
        report = run_recipe(recipe, folder, update=update, only=only, console=told)
    if only is not None:
        report = replace(report, stages=tuple(stage for stage in report.stages if stage.name == only))
    if as_json:
        typer.echo(json.dumps(report_as_json(report), indent=2))
    else:
        print_report(out, report)


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C during a run ends it in good order."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: the same command goes on from here", highlight=False)
        raise typer.Exit(130) from None
