"""The command line: parses options, calls the library, prints results.

declarations.py   how commands declare options and print
options.py        options that several commands share
agent_options.py  options of the commands that run an agent, and what they set up
usage_errors.py   usage errors in one line: nearest names, old names, --run
ask_eval.py       ask, eval
recipes.py        recipes; recipes from the command line: a new run, or a run with one more stage
train.py          run; train sft, prm, rft, dpo, grpo; prm
explore.py        explore, pairs
reports.py        report, tree, compare, study
export.py         export, adapter
index.py          index build, search, info, check
data.py           data get, list
serve.py          serve, serve-agent
studio.py         studio
demo/             demo
machine/          doctor, plan
"""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from stepladder.cli.ask_eval import ask_command, eval_command
from stepladder.cli.data import app as data_app
from stepladder.cli.declarations import ERR, say
from stepladder.cli.demo.demo_command import demo_command
from stepladder.cli.explore import explore_command, pairs_command
from stepladder.cli.export import adapter_command, export_command
from stepladder.cli.index import app as index_app
from stepladder.cli.machine.doctor import doctor_command
from stepladder.cli.machine.plan import plan_command
from stepladder.cli.recipes import recipes_command
from stepladder.cli.reports import compare_command, report_command, study_command, tree_command
from stepladder.cli.serve import serve_agent_command, serve_command
from stepladder.cli.studio import studio_command
from stepladder.cli.train import app as train_app, prm_command, run_command
from stepladder.cli.usage_errors import explain
from stepladder.core.errors import StepladderError
from stepladder.core.io import launch
from stepladder.core.io.interrupts import remembered_interrupts
from stepladder.core.io.known_servers import name_servers
from stepladder.core.io.masking import hide, mask, mask_process
from stepladder.core.trace import TraceError
from stepladder.core.trace_printer import printable
from stepladder.core.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train language models to answer questions by searching, with rewards for each step.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for command in (
    *(demo_command, ask_command, eval_command, recipes_command, plan_command, run_command, explore_command),
    *(tree_command, pairs_command, prm_command, report_command, compare_command, study_command, export_command),
    *(adapter_command, serve_command, serve_agent_command, studio_command, doctor_command),
):
    app.command(name=command.__name__.removesuffix("_command").replace("_", "-"))(command)
app.add_typer(train_app, name="train")
app.add_typer(index_app, name="index")
app.add_typer(data_app, name="data")


def main(arguments: list[str] | None = None) -> int:
    """Entry point. User errors are printed as one line, without a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # print ? for characters that the terminal's encoding lacks
            stream.reconfigure(errors="replace")
    words = [hide(word) for word in (sys.argv[1:] if arguments is None else arguments)]
    name_servers(words)
    mask_process()
    try:
        with remembered_interrupts(), launch.ended_by_launcher():
            code = app(words, prog_name="stepladder", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as end:  # nobody reads standard output any more
        return end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:
        if launch.is_main():
            print("interrupted", file=sys.stderr)
        return 130
    except typer.Abort:
        return 130
    except typer.TyperException as error:
        message = explain(error, words)
        return _print_error(message) if message and launch.prints(error) else 2  # without arguments it was the help
    except launch.MainProcessFailed:
        return 2  # it has printed its error
    except (StepladderError, TraceError) as error:
        return _print_error(str(error)) if launch.prints(error) else 2
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        return _print_error(message) if launch.prints(error) else 2
    finally:
        mask_process()  # Typer has set its own handler of unexpected exceptions
    return code if isinstance(code, int) else 0


def _print_error(message: str) -> int:
    say(f"[bold red]error:[/] {printable(mask(message))}", ERR)
    return 2


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"stepladder {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None: ...
