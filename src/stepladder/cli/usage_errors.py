"""Usage errors in one line that says what to type: nearest names, new names of flags, --run for a run, quotes.

In: an error of typer and the words that were typed. Out: the message.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from stepladder.core.config import expected
from stepladder.core.errors import nearest
from stepladder.pipeline.run_folder import is_run

#: Old flag: new flag.
RENAMED_FLAGS = {
    "--lr": "--learning-rate",
    "--epochs": "--num-train-epochs",
    "--samples": "--num-generations",
    "--batch": "--batch-size",
    "--k": "--topk",
    "--loss": "--loss-type",
    "--teacher": "--teacher-url",
    "--max-playing": "--max-running",
}
#: Old value: new value, by flag.
RENAMED_VALUES = {"--engine": {"gold": "oracle"}}


def reject_renamed(param: typer.CallbackParam, value: str | None) -> str | None:
    """An option callback: raise if the value is the old name of another one."""
    renamed = RENAMED_VALUES.get(param.opts[0], {})
    if value in renamed:
        raise typer.BadParameter(f"'{value}' was renamed to '{renamed[value]}'")
    return value


def explain(error: Any, words: Sequence[str]) -> str:
    """The message of a usage error. typer does not export the classes of its errors: they differ by attributes."""
    message = str(error.format_message()).replace("Value error, ", "").rstrip(".")
    if (context := error.ctx) is None or not message:
        return message
    listed_by = f"`{context.command_path} --help` lists"
    if hasattr(error, "possibilities"):
        return f"{_unknown_option(error.option_name, context)} {listed_by} the options"
    if message.startswith("No such command"):
        return f"{message}{'' if message.endswith('?') else '.'} {listed_by} the commands"
    if advice := _positionals(context, words):
        return advice
    if hasattr(error, "param_type"):  # it is missing
        name = f"{error.param.opts[0]} " if error.param.param_type_name == "option" else ""
        about = str(Text.from_markup(error.param.help)).partition(". ")[0].rstrip(".")
        return f"{name}{error.param.metavar} is missing: {about}. {listed_by} the options"
    what, colon, problem = message.partition(": ")
    if colon and problem.startswith("Input should be "):
        message = f"{what}: expected {expected(problem)}"
    hint = ""
    if found := re.search("'([^']*)' is not one of (.*)$", problem):
        hint = nearest(found[1], re.findall("'(.*?)'", found[2]))
    return f"{message}.{hint} {listed_by} the options"


def _unknown_option(typed: str, context: Any) -> str:
    flags = [flag for param in context.command.params for flag in param.opts]
    if (new := RENAMED_FLAGS.get(typed)) in flags:
        return f"{typed} was renamed to {new}."
    if typed == "--out" and "--run" in flags:
        return "there is no option --out: this command takes an existing run, --run DIR."
    if typed == "--run" and any(param.metavar == "SOURCES" for param in context.command.params):
        return f"there is no option --run: runs are positional here, {context.command_path} DIR DIR."
    if typed == "--run" and "--out" in flags:
        return "there is no option --run: this command starts a run, --out DIR."
    near = nearest(typed.lstrip("-"), [flag.lstrip("-") for flag in flags]).replace("'", "'--", 1)
    return f"there is no option {typed}.{near}"


def _positionals(context: Any, words: Sequence[str]) -> str:
    """What to type if a run or an output was given without --run or --out, or a question without quotes.

    Empty if that is not the mistake.
    """
    path = context.command_path.split()[1:]
    typed = list(words)[len(path) :]
    values, extra, _ = context.command.make_parser(context).parse_args(args=list(typed))
    params = {flag: param for param in context.command.params for flag in param.opts}
    free = [flag for flag in ("--run", "--out") if flag in params and params[flag].name not in values]
    arguments = [param for param in context.command.params if param.param_type_name == "argument"]
    positionals = [*(str(values[each.name]) for each in arguments if values.get(each.name)), *extra]
    last = len(arguments) - 1
    if extra and arguments and arguments[-1].metavar in ("QUESTION", "QUERY") and not is_run(Path(positionals[0])):
        rest = [word for word in typed if word not in positionals[last:]]
        return f"put the words in quotes: {shlex.join(['stepladder', *path, *rest, ' '.join(positionals[last:])])}"
    if not extra and "--run" in free and params["--run"].required:
        extra = positionals[:1]
    moved = positionals[: len(extra)] if "--run" in free else extra
    if not moved or not free:
        return ""
    for flag, value in zip(free, moved):
        typed.insert(typed.index(value), flag)
    what = "run" if "--run" in free else "output"
    return f"the {what} is given with {free[0]}: {shlex.join(['stepladder', *path, *typed])}"
