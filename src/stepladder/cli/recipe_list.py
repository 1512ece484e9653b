"""`recipes` lists the recipes that come with Stepladder, or shows one of them.

A recipe file starts with a comment: what it does, a line `# Needs:` and a line `# Time:`; continued lines are indented.
"""

import json
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from stepladder.cli.declarations import OUT, argument, say
from stepladder.cli.options import AsJson
from stepladder.core.errors import unknown_name
from stepladder.core.trace_printer import printable
from stepladder.pipeline.recipe import read_yaml, shipped


def recipe_info(path: Path) -> dict[str, str]:
    """What a recipe does and needs, from its comment and its settings."""
    header, _, _ = path.read_text(encoding="utf-8").partition("\n\n")
    about, _, rest = header.partition("\n#\n")
    noted = {key: _joined(text) for key, text in re.findall(r"^# (Needs|Time): (.*(?:\n#  .*)*)", rest, re.MULTILINE)}
    plain = read_yaml(path)
    assert isinstance(plain, dict)
    return {
        "name": path.stem,
        "about": _joined(about),
        "model": plain["policy"],
        "data": plain["data"]["name"],
        "needs": noted["Needs"],
        "time": noted["Time"],
        "path": str(path),
    }


def _joined(comment: str) -> str:
    return " ".join(line.lstrip("# ").strip() for line in comment.splitlines())


def recipes_command(
    name: Annotated[str | None, argument("NAME", "A recipe to show in full.", default="list all of them")] = None,
    as_json: AsJson = False,
) -> None:
    """List the built-in recipes with what they do and need, or show one, with its comments, to copy and change."""
    recipes = shipped()
    if name is not None:
        if name not in recipes:
            raise unknown_name("recipe", name, recipes)
        text = recipes[name].read_text(encoding="utf-8")
        typer.echo(json.dumps({**recipe_info(recipes[name]), "text": text}, indent=2) if as_json else text, nl=as_json)
        return
    found = [recipe_info(path) for path in recipes.values()]
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for each in found:
        table = Table.grid(padding=(0, 1, 0, 2), pad_edge=True)
        table.add_row("[dim]trains[/]", printable(f"{each['model']} on {each['data']}"))
        table.add_row("[dim]needs[/]", printable(each["needs"]))
        table.add_row("[dim]time[/]", printable(each["time"]))
        OUT.print(f"[bold]{each['name']}[/]: {printable(each['about'])}", table, sep="\n", highlight=False)
    say("\n`stepladder recipes NAME` shows one with its comments; `stepladder run NAME --out DIR` runs it")
