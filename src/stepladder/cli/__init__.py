"""The command line: parses, calls, prints. Everything it does can be done from Python with the same names.

options.py   options that several commands share, and what they make
play.py      ask, eval
guide.py     options of guided inference
recipes.py   recipes from what was typed: a run that begins, or one with one more stage
train.py     run, train sft, prm, rft, dpo, grpo
report.py    report: a run as a page
compare.py   compare: runs side by side
study.py     study: ways to train, compared with several seeds
explore.py   explore, pairs, export
prm.py       prm: how good a reward model is
adapter.py   adapter: a trained policy as a small folder
tree.py      tree
index.py     index build, search, info
serve.py     serve: an index over HTTP
serve_agent.py  serve-agent: an agent as a chat model and as a tool
about.py     demo, doctor
"""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer
from rich.console import Console

from stepladder import __version__
from stepladder.cli.about import demo, doctor
from stepladder.cli.adapter import adapter_command
from stepladder.cli.ask_eval import ask, evaluate_command
from stepladder.cli.compare import compare_command
from stepladder.cli.explore import explore_command, export_command, pairs_command
from stepladder.cli.index import app as index_app
from stepladder.cli.prm_eval import prm_command
from stepladder.cli.report import report_command
from stepladder.cli.serve import serve_command
from stepladder.cli.serve_agent import serve_agent_command
from stepladder.cli.study import study_command
from stepladder.cli.train import app as train_app
from stepladder.cli.train import run_command
from stepladder.cli.tree import tree_command
from stepladder.core.errors import StepladderError
from stepladder.core.trace import TraceError
from stepladder.core.trace_printer import printable

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train language models to answer hard questions by searching, one graded step at a time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command()(demo)
app.command()(ask)
app.command(name="eval")(evaluate_command)
app.command(name="run")(run_command)
app.add_typer(train_app, name="train")
app.command(name="explore")(explore_command)
app.command(name="tree")(tree_command)
app.command(name="pairs")(pairs_command)
app.command(name="prm")(prm_command)
app.command(name="report")(report_command)
app.command(name="compare")(compare_command)
app.command(name="study")(study_command)
app.command(name="export")(export_command)
app.command(name="adapter")(adapter_command)
app.add_typer(index_app, name="index")
app.command(name="serve")(serve_command)
app.command(name="serve-agent")(serve_agent_command)
app.command()(doctor)


def main(arguments: list[str] | None = None) -> int:
    """Entry point: mistakes of the user end in one clear line, not in a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a terminal that lacks a character shows a question mark instead
            stream.reconfigure(errors="replace")
    try:
        app(arguments, standalone_mode=True)
        sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (StepladderError, TraceError) as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error))
    return 0


def _complain(message: str) -> int:
    Console(stderr=True).print(f"[bold red]error:[/] {printable(message)}", soft_wrap=True, highlight=False)
    return 2


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"stepladder {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...
