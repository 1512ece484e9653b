"""How commands declare options and print: short forms of typer's options and arguments, option groups, consoles.

An option group is an `OptionGroup`, or settings of a `Config` with a help text each. Its fields become options of the
commands that take it, and the defaults in the help are those of the config.
"""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import asdict, dataclass, fields
from functools import partial, wraps
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import typer
from rich.console import Console

from stepladder.core.config import Config, union_members
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.engines.openai.server_config import valid_budget

#: Results go to standard output, notes to standard error.
OUT, ERR = Console(), Console(stderr=True)
#: The settings that were typed, by name.
Typed = dict[str, Any]


def option(metavar: str, help_text: str, default: object = None, *, flags: str = "", **settings: Any) -> Any:
    """A typer option. `default` describes what an option that is left out means.

    `flags`: separated by spaces; without any, the flag is the name of the parameter.
    """
    return typer.Option(*flags.split(), metavar=metavar, help=_with_default(help_text, default), **settings)


def path_option(metavar: str, help_text: str, default: object = None, **settings: Any) -> Any:
    """An option that takes a path."""
    return option(metavar, help_text, default, parser=expand_path, **settings)


def budget_option(help_text: str, default: object = "no limit", **settings: Any) -> Any:
    """An option that takes a spending limit, which is checked here so that errors name the option."""
    return option("AMOUNT", help_text, default, callback=_checked_budget, **settings)


def _checked_budget(text: str | None) -> str | None:
    try:
        return text if text is None else valid_budget(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def argument(metavar: str, help_text: str, default: object = None, **settings: Any) -> Any:
    """A typer argument."""
    return typer.Argument(metavar=metavar, help=_with_default(help_text, default), show_default=False, **settings)


def _with_default(help_text: str, default: object) -> str:
    return help_text if default is None else f"{help_text} [dim](default: {default})[/]"


def say(markup: str, console: Console = OUT) -> None:
    """Print lines of markup as they are, without wrapping or highlighting."""
    console.print(markup, highlight=False, soft_wrap=True)


def print_json(data: object) -> None:
    """Print data as JSON."""
    typer.echo(json.dumps(data, indent=2))


def listed(names: Iterable[str], last: str = ", ") -> str:
    """Names joined for a help text."""
    *others, end = names
    return last.join((", ".join(others), end)) if others else end


def given(**values: Any) -> Typed:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Base of option groups. Every field is an annotated option with a default."""

    #: Title of their panel in the help; None is the panel of all other options.
    panel: ClassVar[str | None] = None

    def typed(self) -> Typed:
        """The values that are not None, by field."""
        return given(**asdict(self))


def takes_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command that takes option groups. Typer sees one option per field or setting.

    The command receives an `OptionGroup` filled with the typed values. `Annotated[ServerConfig, {"port": "Port."}]`
    makes options of settings and receives the config; `Annotated[Typed, GRPOConfig, {"mode": "Rewards."}]` receives the
    typed settings, a fourth argument is their panel in the help. In place of a help text there may be a tuple of it and
    what the default means.
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


def _group(annotation: Any) -> tuple[Callable[..., Any], list[inspect.Parameter]] | None:
    """How to make an option group, and its options; None for any other annotation."""
    if isinstance(annotation, type) and issubclass(annotation, OptionGroup):
        hints, panel = get_type_hints(annotation, include_extras=True), annotation.panel
        return annotation, [
            _parameter(each.name, each.default, panel, *get_args(hints[each.name])) for each in fields(annotation)
        ]
    match get_args(annotation):
        case (_, type() as config, Mapping() as texts, *title):
            return given, _settings(config, texts, *title or [None])
        case (config, Mapping() as texts):
            return partial(_read, config, texts), _settings(config, texts, "Limits")
    return None


def _read(config: type[Config], texts: Iterable[str], **typed: Any) -> Config:
    """The config of typed settings. Errors name flags instead of settings."""
    try:
        return config.read(given(**typed))
    except StepladderError as error:
        message = str(error).removeprefix(f"{config.__name__}: ")
        flags = re.sub(rf"\b({'|'.join(texts)})\b", lambda name: "--" + name[0].replace("_", "-"), message)
        raise StepladderError(flags) from error


def _settings(
    config: type[Config], texts: Mapping[str, str | tuple[str, str]], panel: str | None
) -> list[inspect.Parameter]:
    """Options for settings of a config, which reads and checks their values. The word CHOICES lists the choices.

    A list may be repeated, or separated by commas. A group of settings is a flag: on with its defaults.
    """
    options = []
    for name, text in texts.items():
        if (field := config.model_fields.get(name)) is None:
            continue
        help_text, default = text if isinstance(text, tuple) else (text, setting_default(config, name))
        kinds = union_members(field.annotation)
        kind: Any = str | None
        if any(isinstance(each, type) and issubclass(each, Config) for each in kinds):
            declared = typer.Option(
                "--" + name.replace("_", "-"), help=help_text, callback=lambda on: {} if on else None
            )
            options.append(_parameter(name, False, panel, bool, declared))
            continue
        settings: dict[str, Any] = {"flags": "-k --topk"} if name == "topk" else {}
        if items := [each for each in kinds if get_origin(each) is tuple]:
            kinds, kind = get_args(items[0]), list[str] | None
            settings["callback"] = lambda values: ",".join(values).replace(" ", "").split(",") if values else None
        choices = [str(value) for each in kinds if get_origin(each) is Literal for value in get_args(each)]
        metavar = "N" if {int, float}.intersection(kinds) else "NAME"
        help_text = help_text.replace("CHOICES", listed(choices or "-", " or "))
        is_budget = name.endswith("budget")
        declared = budget_option(help_text, default) if is_budget else option(metavar, help_text, default, **settings)
        options.append(_parameter(name, None, panel, kind, declared))
    return options


def setting_default(config: type[Config], name: str) -> str:
    """The default of a setting, as the help shows it."""
    value = config.model_fields[name].get_default(call_default_factory=True)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parameter(name: str, default: Any, panel: str | None, kind: Any, declared: Any) -> inspect.Parameter:
    """An option as a keyword parameter, in a panel of the help."""
    declared = copy(declared)
    declared.rich_help_panel = panel or declared.rich_help_panel
    annotation: Any = Annotated[kind, declared]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
