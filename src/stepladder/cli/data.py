"""`data get` downloads a published question set; `data list` shows the sets and where they are."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stepladder.cli.declarations import ERR, argument, listed, path_option, print_json, say
from stepladder.cli.options import AsJson
from stepladder.core.trace_printer import printable
from stepladder.data.folders import PUBLISHED, find_published, search_folders
from stepladder.data.hub_sets import HUB_SETS, fetch_set

app = typer.Typer(help="Download published question sets, and list them.", no_args_is_help=True)

_COLUMNS = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())


@app.command("get")
def data_get(
    name: Annotated[str, argument("NAME", f"The set: {listed(HUB_SETS, ' or ')}.")],
    to: Annotated[
        Path | None, path_option("DIR", "Folder of the set.", "$STEPLADDER_DATA/NAME, else data/NAME")
    ] = None,
) -> None:
    """Download a published question set from the Hugging Face hub. An interrupted download is continued."""
    folder = to or search_folders(name)[0]
    with Progress(*_COLUMNS, console=ERR) as bars:
        tasks: dict[str, TaskID] = {}

        def watch(file: str, arrived: int, size: int) -> None:
            if file not in tasks:
                tasks[file] = bars.add_task(file, total=size)
            bars.update(tasks[file], completed=arrived)

        fetched = fetch_set(name, folder, watch)
    use = name if to is None else str(folder)
    say(f"{printable(str(folder))}: {'complete' if fetched else 'already there'}; use it with --data {printable(use)}")


@app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """The published question sets: where they are on this machine, and their license pages."""
    found = {name: find_published(name) for name in PUBLISHED}
    if as_json:
        rows = {name: {"url": PUBLISHED[name].url, "folder": folder and str(folder)} for name, folder in found.items()}
        print_json(rows)
        return
    width = max(map(len, found))
    for name, folder in found.items():
        place = printable(str(folder)) if folder is not None else f"stepladder data get {name}"
        say(f"{name:{width}}  {place}  [dim]{PUBLISHED[name].url}[/]")
