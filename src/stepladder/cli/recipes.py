"""Recipes from the command line: of a new run, or of a run with one more stage.

In: a stage as plain data, and --set overrides. Out: a `Recipe`, run by `run_and_print`. If no earlier stage writes an
input of the stage, the error names the command that does.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer

from stepladder.cli.declarations import ERR, OUT, path_of, say
from stepladder.cli.options import StageOptions
from stepladder.core.errors import StepladderError
from stepladder.data import DATA_SETS
from stepladder.pipeline import run_recipe
from stepladder.pipeline.recipe import Recipe, override
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS, REWARD, TREES
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.run_tables import as_json as report_as_json, print_report

#: By role: its name in messages, and the command that writes it.
_COMMANDS = {
    TREES: ("trees", "explore", "them"),
    PAIRS: ("pairs", "pairs", "them"),
    REWARD: ("reward model", "train prm", "one"),
}


def run_and_print(recipe: Recipe, folder: Path, update: bool, as_json: bool, only: str | None = None) -> None:
    """Run a recipe, or `only` one of its stages, and print the results."""
    with interruptible():
        report = run_recipe(recipe, folder, update=update, only=only, console=ERR if as_json else OUT)
    if only is not None:
        report = replace(report, stages=tuple(stage for stage in report.stages if stage.name == only))
    if as_json:
        typer.echo(json.dumps(report_as_json(report), indent=2))
    else:
        print_report(OUT, report)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into a message and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted: the same command resumes from here", ERR)
        raise typer.Exit(130) from None


def add_stage(run: Path, kind: str, settings: Mapping[str, Any], options: StageOptions, **more: Any) -> None:
    """Add a stage to a run and run it. Its name is its kind unless --name is given."""
    name = options.name or kind
    recipe = extend_recipe(run, name, {"kind": kind, **settings}, options.overrides, **more)
    run_and_print(recipe, run, options.update, options.as_json, only=name)


def new_recipe(
    name: str,
    stages: Mapping[str, Any],
    *,
    model: str = "nano",
    agent: str = "prorag",
    data: str = "atlas",
    dev: Path | None = None,
    index: str | None = None,
    topk: int = 3,
    world_seed: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """A recipe of these stages, as plain data. `data` is a data set, or a question file to train on."""
    is_name = data in DATA_SETS or not path_of(data).is_file()  # a missing file is reported as an unknown name
    if is_name and dev is not None:
        raise StepladderError(f"--dev needs a question file as --data, and {data} is none")
    return {
        "name": name,
        "seed": seed,
        "policy": model,
        "agent": agent,
        "data": {
            "world_seed": world_seed,
            "index": index,
            **({"name": data} if is_name else {"train": data, "dev": dev}),
        },
        "search": {"k": topk},
        "stages": dict(stages),
    }


def extend_recipe(
    run: Path,
    name: str,
    entry: Mapping[str, Any],
    overrides: list[str] | None,
    *,
    sources: Mapping[str, Any] | None = None,
    alternative: str = "",
) -> Recipe:
    """The recipe of a run with one more stage, which replaces a stage of the same name.

    `sources` are stages to insert before it. `alternative` ends the error about a missing input.
    """
    folder = RunFolder.open(run)
    plain = folder.recipe().plain()
    kind = plain["stages"].get(name, entry)["kind"]
    if kind != entry["kind"]:
        raise StepladderError(f"the run {run} already has a stage '{name}' of kind {kind}: choose another --name")
    before = {**_before(plain["stages"], name), **(sources or {})}
    stages = {**before, name: {**finished_inputs(folder, before, entry, _where(name)), **entry}}
    stages |= {each: stage for each, stage in plain["stages"].items() if each not in stages}
    changed = _overridden({**plain, "stages": stages}, name, overrides)
    for role in _missing_inputs(changed["stages"], name):
        if role in _COMMANDS:
            raise missing_input(run, role, alternative)
    return Recipe.read(changed, name)


def finished_inputs(
    folder: RunFolder, before: Mapping[str, Any], entry: Mapping[str, Any], where: str = ""
) -> dict[str, str]:
    """By role: the newest finished stage, if a newer stage that writes the role is not finished.

    A failed stage is skipped this way. `where` starts the message of an error in the settings of `entry`.
    """
    found: dict[str, str] = {}
    for role in _inputs(entry, where):
        writers = [each for each, stage in before.items() if role in get_stage(stage["kind"]).outputs]
        finished = [each for each in writers if folder.done(each) is not None]
        if finished and finished[-1] != writers[-1]:
            found[role] = finished[-1]
    return found


def stages_before(run: Path, name: str) -> dict[str, Any]:
    """The stages of a run before the one with this name, or all of them, as plain data."""
    return _before(RunFolder.open(run).recipe().plain()["stages"], name)


def missing_input(run: Path, role: str, alternative: str = "") -> StepladderError:
    """The error if a run lacks something, with the command that makes it."""
    what, command, it = _COMMANDS[role]
    return StepladderError(
        f"the run {run} has no {what} yet: `stepladder {command} --run {run}` makes {it}{alternative}"
    )


def read_recipe(plain: Any, name: str, overrides: list[str] | None) -> Recipe:
    """A recipe, with --set overrides of its stage `name`. Errors start with the name."""
    return Recipe.read(_overridden(plain, name, overrides), name)


def _overridden(plain: Any, name: str, overrides: list[str] | None) -> Any:
    for change in overrides or ():
        plain = override(plain, change.removeprefix(f"stages.{name}."), within=("stages", name))
    return plain


def _before(stages: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(takewhile(lambda each: each[0] != name, stages.items()))


def _missing_inputs(stages: Mapping[str, Any], name: str) -> list[str]:
    """The input roles of a stage that are not set and that no earlier stage writes."""
    written = {role for each in _before(stages, name).values() for role in get_stage(each["kind"]).outputs}
    entry = stages[name]
    return [role for role in _inputs(entry, _where(name)) if role not in written and entry.get(role) is None]


def _inputs(entry: Mapping[str, Any], where: str) -> list[str]:
    """The input roles of a stage with these settings."""
    spec = get_stage(str(entry["kind"]))
    own = {key: value for key, value in entry.items() if key in spec.config.model_fields}
    unused = spec.unused_inputs(spec.config.read(own, where))
    return [role for role in spec.inputs if role not in unused]


def _where(name: str) -> str:
    """The start of error messages about the settings of a stage."""
    return f"{name}: stages.{name}"
