"""`compare` puts runs and saved evaluations side by side: a table, a page, plain data."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.options import AsJson, path_of
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable

out = Console()


def compare_command(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help=r"Runs, or folders of `eval --out`: \[LABEL=]PATH\[:STAGE]. Of a run the last evaluation of its "
            "policy counts; :STAGE names another one, :* takes all. Runs that differ by their seed, or have one label, "
            "are one line.",
            show_default=False,
        ),
    ],
    metric: Annotated[str, typer.Option("--metric", help="What differences are of: f1, em, searches ...")] = "f1",
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="LABEL", help="The line that others are compared with [dim](the first)[/]."),
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="NAME", help="Which evaluation of every run, unless one says it.")
    ] = None,
    sort: Annotated[
        str | None, typer.Option("--sort", metavar="METRIC", help="Put lines in order by a metric, the highest first.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", parser=path_of, metavar="FILE", help="Write a page, with pictures.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs on the questions that all of them have: scores with intervals, paired differences, cost."""
    from stepladder.driver.progress import Progress
    from stepladder.reporting.compare import as_plain, compare_lines, lines_of, open_sources, write_page
    from stepladder.reporting.compare.compare_table import print_compared

    if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
        raise StepladderError(f"--html: {html} is no file that can be written: give a file in a folder that exists")
    compared = compare_lines(lines_of(open_sources(runs, stage)), metric, against=against, sort=sort)
    if html is not None or as_json:
        count = len(compared.lines) * (len(compared.lines) - 1) // 2
        with Progress("Differences", count) as watch:
            every_two = compared.every_two(watch.advance)
        if html is not None:
            write_page(compared, every_two, html)
        if as_json:
            typer.echo(json.dumps(as_plain(compared, every_two), indent=2))
    if not as_json:
        print_compared(out, compared)
    if html is not None:
        Console(stderr=True).print(f"{printable(str(html))}: the page", highlight=False, soft_wrap=True)
