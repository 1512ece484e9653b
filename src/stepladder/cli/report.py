"""`report` writes the report of a run: one HTML file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepladder.cli.options import path_of
from stepladder.core.errors import StepladderError
from stepladder.core.trace_printer import printable
from stepladder.reporting.report import write_report

console = Console()


def report_command(
    run: Annotated[Path, typer.Argument(parser=path_of, metavar="RUN", help="A run, finished or not.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", parser=path_of, metavar="FILE", help="Where to write it [dim](default: RUN/report.html)[/]."
        ),
    ] = None,
) -> None:
    """Write a page about a run: results, curves, search trees, transcripts. It opens from disk, without a network."""
    if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
        raise StepladderError(f"--out: {out} is no file that can be written: give a file in a folder that exists")
    path = write_report(run, out)
    size = path.stat().st_size / 1e6
    console.print(f"{printable(str(path))}: the report, {size:.1f} MB", highlight=False, soft_wrap=True)
