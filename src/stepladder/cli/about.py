"""`demo` shows what Stepladder is; `doctor` what this machine is."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.options import AsJson, Seed
from stepladder.demo import run_demo
from stepladder.doctor import examine
from stepladder.narrate import shown

out = Console()


def demo(
    questions: Annotated[int, typer.Option(min=1, help="Test questions to play.")] = 100,
    seed: Seed = 0,
) -> None:
    """The whole path on this machine: a fictional world, an index, an oracle, an untrained model, scores."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "stepladder" else "stepladder"
    run_demo(out, questions, seed, program)


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
