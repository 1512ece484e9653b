"""How commands declare options and print: short forms of typer's options and arguments, option groups, consoles.

An option group is an `OptionGroup`, or a `Config` with help texts. Its fields become options of the commands that
take it.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import typer
from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path

#: Results go to standard output, notes to standard error.
OUT, ERR = Console(), Console(stderr=True)


def option(flags: str, metavar: str, help_text: str, default: object = None, **settings: Any) -> Any:
    """A typer option. `flags` are separated by spaces; `default` describes what an option that is left out means."""
    return typer.Option(*flags.split(), metavar=metavar, help=_with_default(help_text, default), **settings)


def number_option(flags: str, help_text: str, default: object = None, **limits: Any) -> Any:
    """An option that takes a number."""
    return option(flags, "N", help_text, default, **limits)


def path_option(flags: str, metavar: str, help_text: str, default: object = None) -> Any:
    """An option that takes a path."""
    return option(flags, metavar, help_text, default, parser=path_of)


def argument(metavar: str, help_text: str, default: object = None, **settings: Any) -> Any:
    """A typer argument."""
    return typer.Argument(metavar=metavar, help=_with_default(help_text, default), show_default=False, **settings)


def _with_default(help_text: str, default: object) -> str:
    return help_text if default is None else f"{help_text} [dim](default: {default})[/]"


def say(markup: str, console: Console = OUT) -> None:
    """Print lines of markup as they are, without wrapping or highlighting."""
    console.print(markup, highlight=False, soft_wrap=True)


def path_of(text: str) -> Path:
    """A path as typed, with ~ resolved."""
    return expand_path(text)


def listed(names: Iterable[str]) -> str:
    """Names joined for a help text."""
    return ", ".join(names)


def given(**values: Any) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_writable_file(flag: str, path: Path | None) -> None:
    """Raise if no file can be written at this path."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise StepladderError(f"{flag}: cannot write {path}: give a file in an existing folder")


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Base of option groups. Every field is an annotated option with a default."""

    #: Title of their panel in the help; None is the panel of all other options.
    panel: ClassVar[str | None] = None

    def typed(self) -> dict[str, Any]:
        """The values that are not None, by field."""
        return given(**asdict(self))


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that takes option groups: `OptionGroup`s, or a `Config` annotated with help texts by field.

    Typer sees one option per field. The command receives each group filled with the typed values.
    """
    groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if (group := _group(parameter.annotation)) is None:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
        else:
            groups[parameter.name] = (group[0], [option.name for option in group[1]])
            parameters += group[1]

    signature = inspect.Signature(parameters)

    @wraps(command)
    def run(**typed: Any) -> None:
        bound = signature.bind(**typed)
        bound.apply_defaults()
        values = bound.arguments
        for name, (make, options) in groups.items():
            values[name] = make(**{option: values.pop(option) for option in options})
        command(**values)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _group(kind: Any) -> tuple[Callable[..., Any], list[inspect.Parameter]] | None:
    """How to make an option group, and its options; None for any other annotation."""
    if isinstance(kind, type) and issubclass(kind, OptionGroup):
        hints = get_type_hints(kind, include_extras=True)
        return kind, [_parameter(each.name, hints[each.name], each.default, kind.panel) for each in fields(kind)]
    config, *metadata = get_args(kind) or (kind,)
    if not metadata or not isinstance(metadata[0], Mapping):
        return None
    options = []
    for name, help_text in metadata[0].items():
        if (field := config.model_fields.get(name)) is not None:
            flags = "-k --topk" if name == "topk" else f"--{name.replace('_', '-')}"
            annotation = _annotated(field.annotation, number_option(flags, help_text))
            options.append(_parameter(name, annotation, field.default, "Limits"))
    return lambda **typed: config.read(typed), options


def _parameter(name: str, annotation: Any, default: Any, panel: str | None = None) -> inspect.Parameter:
    """An option as a keyword parameter, in a panel of the help."""
    kind, metadata = get_args(annotation)
    if panel is not None:
        metadata = copy(metadata)
        metadata.rich_help_panel = panel
    annotation = _annotated(kind, metadata)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotated(kind: Any, metadata: Any) -> Any:
    return Annotated[kind, metadata]
