"""The page of the command line, from the commands themselves.

In: the Typer application. Out: Markdown, one section per command with its options by panel, as `--help` shows them.
"""

import re
from collections.abc import Iterator
from typing import Any

import typer

from stepladder.cli import app

_INTRO = """\
# Command line

Generated from the commands; `stepladder COMMAND --help` prints the same. Exit status: 0 for success, 1 for a check that
failed, 2 for a mistake in what was asked, 130 after Ctrl-C.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRO, *_sections(typer.main.get_command(app), "stepladder")])


def _sections(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _sections(command, full)
            continue
        yield f"## `{full}`\n\n{plain(command.help or '')}\n"
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        words = [f"[{each.metavar}]" if not each.required else str(each.metavar) for each in arguments]
        yield "```text\n" + " ".join([full, *words, "[OPTIONS]"]) + "\n```\n"
        panels: dict[str, list[str]] = {}
        for parameter in command.params:
            if not parameter.hidden and parameter.name != "help":
                panels.setdefault(parameter.rich_help_panel or "", []).append(_parameter(parameter))
        for title, lines in panels.items():
            yield "\n".join([*([f"**{title}**\n"] if title else []), *lines, ""])


def _parameter(parameter: Any) -> str:
    """One option or argument as an item of a list."""
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar}`"
    else:
        flags = ", ".join(parameter.opts)
        flag_only = getattr(parameter, "is_bool_flag", False)
        name = f"`{flags}`" if flag_only else f"`{flags} {parameter.metavar or 'VALUE'}`"
    text = plain(parameter.help or "")
    default = parameter.default
    if default is not None and not isinstance(default, bool) and parameter.show_default and "(default:" not in text:
        text += f" (default: {default})"
    return f"- {name}: {text}"


def plain(markup: str) -> str:
    """Rich markup as Markdown: tags go, angle brackets and line breaks within a paragraph do too.

    >>> plain("Random seed. [dim](default: 0)[/]")
    'Random seed. (default: 0)'
    """
    text = re.sub(r"\[/?[a-z ]*\]", "", markup)
    text = re.sub(r"\\\[", "[", text).replace("<", "&lt;")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
