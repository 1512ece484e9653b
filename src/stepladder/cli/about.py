"""`demo` shows what Stepladder is; `doctor` what this machine is."""

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console

from stepladder.cli.options import AsJson, Overrides, RunOut, Seed, Update
from stepladder.cli.train import stoppable
from stepladder.demo import run_demo
from stepladder.doctor import examine
from stepladder.narrate import shown
from stepladder.recipe import load_recipe

#: The recipe that the demo carries out.
RECIPE = "prorag-nano"

out = Console()


def demo(
    folder: RunOut = Path("runs/demo"),
    seed: Seed = 0,
    overrides: Overrides = None,
    update: Update = False,
) -> None:
    """Train a small model to search, here and now: a fictional world, an oracle, scores before and after."""
    recipe = load_recipe(RECIPE, [f"seed={seed}", *(overrides or ())])
    with stoppable():
        run_demo(out, recipe, folder, update=update)


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
