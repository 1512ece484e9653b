"""`study` compares ways to train, with several seeds."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.options import AsJson, Overrides, Update, path_of
from stepladder.cli.train import stoppable
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.reporting.studies import STUDIES, find_study
from stepladder.reporting.studies.study_report import print_results, write_results
from stepladder.reporting.studies.study_results import read_results
from stepladder.reporting.studies.study_runner import run_study

out = Console()


def study_command(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which one; left out, they are listed.", show_default=False)
    ] = None,
    folder: Annotated[
        Path, typer.Option("--out", parser=path_of, help="Where studies are kept, each in a folder of its name.")
    ] = Path("studies"),
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many: 0, 1, 2 ...")] = 5,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Runs at a time; they share cores and GPU.")] = 1,
    overrides: Overrides = None,
    update: Update = False,
    as_json: AsJson = False,
) -> None:
    """Compare ways to train: the same recipe, one thing changed, several seeds. The same command goes on if cut."""
    if name is None:
        for each in STUDIES.values():
            out.print(f"[bold]{each.name}[/]: {printable(each.about)}", highlight=False, soft_wrap=True)
        return
    study = find_study(name)
    place = folder / study.name
    chosen = range(seeds)
    if next((each for each in (place, *place.parents) if each.exists()), place).is_file():
        raise StepladderError(f"--out: {place} cannot be a folder: a file is in the way")
    with stoppable():
        told = Console(stderr=True)
        run_study(study, place, seeds=chosen, jobs=jobs, changes=overrides or (), update=update, console=told)
    results = read_results(study, place, chosen)
    picture = write_results(results, place)
    if as_json:
        typer.echo(json.dumps(results.plain(), indent=2))
        return
    print_results(out, results)
    if picture is not None:
        out.print(f"\nthe picture: {printable(str(picture))}", highlight=False, soft_wrap=True)
