"""Renamed flags and values: typing an old one is an error that names the new one."""

from typing import Any

import typer
from typer.core import TyperGroup

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


class RootGroup(TyperGroup):
    """The root command: explains an unknown option of any subcommand if it is the old name of one that it has."""

    def invoke(self, ctx: Any) -> Any:
        """Run a subcommand; rewrite the message of a NoSuchOption error."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # typer does not export click's NoSuchOption: recognized by its attributes
            flag, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
            known = {name for each in context.command.params for name in each.opts} if context is not None else set()
            if isinstance(flag, str) and (new := RENAMED_FLAGS.get(flag)) in known:
                error.message, error.possibilities = f"{flag} was renamed to {new}", None  # type: ignore[attr-defined]
            raise


def reject_renamed(param: typer.CallbackParam, value: str | None) -> str | None:
    """An option callback: raise if the value is the old name of another one."""
    renamed = RENAMED_VALUES.get(param.opts[0], {})
    if value in renamed:
        raise typer.BadParameter(f"'{value}' was renamed to '{renamed[value]}'")
    return value
