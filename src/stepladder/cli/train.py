"""`run` carries out a recipe; `train sft` is a recipe of one stage, written as options; `train prm`, `rft`, `dpo` and
`grpo` add a stage to a run.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from stepladder.cli.options import (
    AGENTS_HELP,
    AsJson,
    IndexPlace,
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
from stepladder.cli.recipes import RunToExtend, StageName, extended, given, new_run, read, stages_before
from stepladder.core.errors import StepladderError
from stepladder.data import DATA_SETS
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe, load_recipe, shipped
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS
from stepladder.reporting.run_tables import as_json as report_as_json
from stepladder.reporting.run_tables import print_report

app = typer.Typer(help="Train with a single stage: sft begins a run, the others go on with one.", no_args_is_help=True)
out = Console()

Epochs = Annotated[float | None, typer.Option("--epochs", help="Times to go through what is learnt from.")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate.")]
Lora = Annotated[bool, typer.Option("--lora", help="Train small matrices beside the weights, not all weights.")]


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
    agent: Annotated[str, typer.Option("--agent", help=f"The steps to teach: {AGENTS_HELP}.")] = "prorag-brief",
    data: Annotated[
        str,
        typer.Option(
            "--data", help=f"{listed(DATA_SETS)}, a published set, a folder or a file of questions to train on."
        ),
    ] = "atlas",
    dev: Annotated[
        Path | None,
        typer.Option("--dev", parser=path_of, help="With a question file: another one to watch progress on."),
    ] = None,
    index: IndexPlace = None,
    k: K = 1,
    world_seed: WorldSeed = 0,
    questions: Annotated[int | None, typer.Option("--questions", min=1, help="Questions to train on.")] = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Where transcripts come from: gold, mined, bootstrap or teacher.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option("--teacher", help="URL of the OpenAI-compatible server of a teacher.")
    ] = None,
    teacher_model: Annotated[str | None, typer.Option("--teacher-model", help="The teacher's name there.")] = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    lora: Lora = False,
    seed: Seed = 0,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Warm up a model on transcripts; --set changes any other setting of the stage."""
    entry = given(
        questions=questions,
        source=source or ("teacher" if teacher or teacher_model else None),
        teacher_url=teacher,
        teacher_model=teacher_model,
        num_train_epochs=epochs,
        learning_rate=lr,
        lora={} if lora else None,
    )
    recipe = new_run(
        "sft",
        {"sft": entry},
        model=model,
        agent=agent,
        data=data,
        dev=dev,
        index=index,
        k=k,
        world_seed=world_seed,
        seed=seed,
    )
    carry_out(read(recipe, "sft", overrides), folder, update, as_json)


@app.command("prm")
def train_prm_command(
    run: RunToExtend,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="What it learns: pairs (default: which of two steps is better), or of the trees: verdicts (the gold "
            "judge's), values (what every step is worth) or outcome (what an episode earned, from its end).",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="A model to begin with, such as nano-critic, instead of the newest policy."),
    ] = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    lora: Lora = False,
    name: StageName = None,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Train a process reward model on a run's pairs or trees; --set changes any other setting of the stage."""
    name = name or "prm"
    entry = given(
        kind="prm",
        objective=objective,
        model=model,
        num_train_epochs=epochs,
        learning_rate=lr,
        lora={} if lora else None,
    )
    carry_out(extended(run, name, entry, overrides), run, update, as_json, only=name)


@app.command("rft")
def train_rft_command(
    run: RunToExtend,
    questions: Annotated[int | None, typer.Option("--questions", min=1, help="Questions to sample.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="Episodes a question.")] = None,
    threshold: Annotated[
        str | None,
        typer.Option(
            "--threshold",
            metavar="NUMBER|none",
            help="The score that every step must reach (default: 0); none does without a reward model.",
        ),
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", min=1, help="Most transcripts kept of a question.")] = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    lora: Lora = False,
    name: StageName = None,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Refine a run's policy on its own transcripts that are right in every step; --set changes any other setting."""
    name = name or "rft"
    entry = given(
        kind="rft",
        questions=questions,
        num_generations=samples,
        keep=keep,
        num_train_epochs=epochs,
        learning_rate=lr,
        lora={} if lora else None,
    )
    if threshold is not None:
        entry["threshold"] = _number_or_none("--threshold", threshold)
    recipe = extended(run, name, entry, overrides, otherwise=", and --threshold none does without")
    carry_out(recipe, run, update, as_json, only=name)


@app.command("dpo")
def train_dpo_command(
    run: RunToExtend,
    pairs: Annotated[
        Path | None,
        typer.Option(
            "--pairs",
            parser=path_of,
            metavar="FILE",
            help="Pairs of RAG-ProGuide or of Stepladder (a file or a folder), instead of the run's newest.",
        ),
    ] = None,
    beta: Annotated[
        float | None, typer.Option("--beta", help="How strongly the policy is held to where it began.")
    ] = None,
    loss: Annotated[str | None, typer.Option("--loss", help="sigmoid (default) or ipo.")] = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    lora: Lora = False,
    name: StageName = None,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Make the better step of each pair likelier (DPO); --set changes any other setting of the stage."""
    name = name or "dpo"
    entry = given(
        kind="dpo", beta=beta, loss_type=loss, num_train_epochs=epochs, learning_rate=lr, lora={} if lora else None
    )
    sources = {}
    if pairs is not None:
        entry[PAIRS], stage = _stage_of_file(run, name, pairs.absolute())
        sources[entry[PAIRS]] = stage
    recipe = extended(
        run, name, entry, overrides, sources=sources, otherwise=", and --pairs FILE takes those of others"
    )
    carry_out(recipe, run, update, as_json, only=name)


@app.command("grpo")
def train_grpo_command(
    run: RunToExtend,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="What is rewarded: dual (default: the answer, and every step by the reward model), outcome (the "
            "answer alone), process (steps alone) or tree (steps by the answers that follow from them).",
        ),
    ] = None,
    questions: Annotated[int | None, typer.Option("--questions", min=1, help="Questions to play.")] = None,
    samples: Annotated[int | None, typer.Option("--samples", min=2, help="Episodes a question.")] = None,
    epochs: Epochs = None,
    lr: LearningRate = None,
    lora: Lora = False,
    name: StageName = None,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Reinforce what earned more than other episodes of its question did; --set changes any other setting."""
    name = name or "grpo"
    entry = given(
        kind="grpo",
        mode=mode,
        questions=questions,
        num_generations=samples,
        num_train_epochs=epochs,
        learning_rate=lr,
        lora={} if lora else None,
    )
    recipe = extended(run, name, entry, overrides, otherwise=", and --mode outcome or tree does without")
    carry_out(recipe, run, update, as_json, only=name)


def _number_or_none(option: str, text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text)
    except ValueError as error:
        raise StepladderError(f"{option}: expected a number, or none; found {text!r}") from error


def _stage_of_file(run: Path, name: str, path: Path) -> tuple[str, dict[str, Any]]:
    """The stage before `name` that brings the pairs of a file: the run's own, or a new one of a name that is free."""
    for each, stage in stages_before(run, name).items():
        if stage["kind"] == "pairs-file" and stage["path"] == str(path):
            return each, stage
    taken = {name, *(stage.name for stage in RunFolder.open(run).recipe().stages)}
    names = chain(["pairs-file"], (f"pairs-file-{number}" for number in count(2)))
    return next(each for each in names if each not in taken), {"kind": "pairs-file", "path": str(path)}


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
