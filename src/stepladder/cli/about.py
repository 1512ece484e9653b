"""`demo` shows what Stepladder is; `doctor` what this machine is."""

import json
import math
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.demo import run_demo
from stepladder.cli.doctor import examine
from stepladder.cli.options import AsJson, Overrides, RunOut, Seed, Update
from stepladder.cli.train import stoppable
from stepladder.core.trace_printer import printable
from stepladder.pipeline.recipe import Recipe, load_recipe
from stepladder.train.grpo.config import GRPOConfig


class Size(StrEnum):
    """How much the demo does."""

    small = "small"
    large = "large"


#: The recipes that the demo carries out.
RECIPES = {Size.small: "prorag-nano", Size.large: "prorag-nano-large"}
#: The fastest update that a time limit reckons with, in seconds.
_FAST = 1.0
#: Most questions that it takes then: two thirds of Atlas's train questions.
_MOST_QUESTIONS = 800

out = Console()


def demo(
    folder: RunOut = Path("runs/demo"),
    seed: Seed = 0,
    size: Annotated[
        Size, typer.Option("--size", help="small: minutes on a laptop. large: more of everything, and better.")
    ] = Size.small,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0.1,
            max=100_000,
            help="Time of the reinforcement learning.",
        ),
    ] = None,
    overrides: Overrides = None,
    update: Update = False,
) -> None:
    """Train a small model to search, here and now: a fictional world, an oracle, scores stage by stage."""
    changes = [f"seed={seed}", *(overrides or ())]
    recipe = load_recipe(RECIPES[size], changes)
    if minutes is not None:
        recipe = load_recipe(RECIPES[size], [*changes, *_for(minutes, recipe)])
    with stoppable():
        run_demo(out, recipe, folder, update=update)


def _for(minutes: float, recipe: Recipe) -> list[str]:
    """Changes that let reinforcement learning go on until the time is up, with new questions as long as there are."""
    (stage,) = (stage for stage in recipe.stages if isinstance(stage.settings, GRPOConfig))
    settings = stage.settings
    assert isinstance(settings, GRPOConfig)
    asked = math.ceil(minutes * 60 / _FAST) * (settings.batch_size // settings.num_generations)
    questions = min(max(asked, settings.questions), _MOST_QUESTIONS)
    begin = f"stages.{stage.name}"
    return [f"{begin}.minutes={minutes}", f"{begin}.questions={questions}", f"{begin}.num_train_epochs={asked / questions}"]


def doctor(as_json: AsJson = False) -> None:
    """Versions, devices, what is missing and the command that installs it."""
    findings = examine()
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            mark = "[green]ok[/]     " if finding.ok else "[dim]absent[/] " if finding.optional else "[red]missing[/]"
            out.print(f"{mark} {finding.what:<14} {printable(finding.state)}", highlight=False, soft_wrap=True)
            if finding.fix:
                out.print(f"{'':<22} [dim]{printable(finding.fix)}[/]", highlight=False, soft_wrap=True)
    if any(not finding.ok and not finding.optional for finding in findings):
        raise typer.Exit(1)
