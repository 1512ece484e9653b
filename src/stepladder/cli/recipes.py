"""Recipes from the command line: of a new run, or of a run with one more stage. `recipes` lists the built-in ones.

In: a stage as plain data, and --set overrides. Out: a `Recipe`, run by `run_and_print`. If no earlier stage writes an
input of the stage, the error names the command that does.

A built-in recipe starts with a comment: what it does, a line `# Needs:` and a line `# Time:`; continued lines are
indented.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from stepladder.agents import is_agent_file
from stepladder.cli.declarations import ERR, OUT, argument, given, print_json, say
from stepladder.cli.options import AsJson, ExtendOptions, NewRunOptions, RunOptions
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io import launch
from stepladder.core.io.files import expand_path
from stepladder.core.trace_printer import printable
from stepladder.data import DATA_SETS
from stepladder.driver.cluster import RayConfig
from stepladder.pipeline import run_recipe
from stepladder.pipeline.agent_config import KEYS, with_settings
from stepladder.pipeline.recipe import MissingInput, Recipe, Stage, override, read_yaml, shipped
from stepladder.pipeline.resources import SharedConfig
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.runner import StaleStages
from stepladder.pipeline.stage import PAIRS, REWARD, TREES
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.run_tables import as_json as report_as_json, print_report

#: By role: its name in messages, and the command that writes it.
_COMMANDS = {
    TREES: ("trees", "`stepladder explore --run {run}` makes them"),
    PAIRS: ("pairs", "`stepladder pairs --run {run}` makes them"),
    REWARD: ("reward model", "`stepladder train prm --run {run}` makes one"),
}


def run_and_print(
    recipe: Recipe, folder: Path, options: RunOptions, *, only: str | None = None, ray: RayConfig | None = None
) -> None:
    """Run a recipe, or `only` one of its stages, and print the results. `ray`: in place of the recipe's cluster."""
    if ray is not None:
        recipe = replace(recipe, shared=recipe.shared.model_copy(update={"ray": ray}))
    try:
        with interruptible():
            console = ERR if options.as_json else OUT
            report = run_recipe(recipe, folder, **options.updating(), only=only, console=console)
    except StaleStages as error:
        if only is None:
            keep = f"--out {free_name(folder)} keeps it and starts another run"
        elif error.stages[0].name == only:
            keep = f"{_beside(recipe, only)} keeps it and puts the new one beside it"
        else:
            keep = "Undo that change to keep it"
        raise StaleStages(error.folder, error.stages, keep) from None
    if not launch.is_main():  # the main process prints
        return
    if only is not None:
        report = replace(report, stages=tuple(stage for stage in report.stages if stage.name == only))
    if options.as_json:
        print_json(report_as_json(report))
    else:
        print_report(OUT, report)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into a message and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        if launch.is_main():  # the others are interrupted too
            say("interrupted: the same command resumes from here", ERR)
        raise typer.Exit(130) from None


def add_stage(
    run: Path,
    kind: str,
    settings: Mapping[str, Any],
    options: ExtendOptions,
    *,
    ray: RayConfig | None = None,
    **more: Any,
) -> None:
    """Add a stage to a run and run it. Its name is its kind unless --name is given."""
    name = options.name or kind
    entry = {"kind": kind, **settings}
    recipe = extend_recipe(run, name, entry, options.overrides, named=options.named(), **more)
    run_and_print(recipe, run, options, only=name, ray=ray)


def _beside(recipe: Recipe, name: str) -> str:
    """The options that add a stage like this one at the end of the recipe, with the same inputs."""
    stage = find_stage(recipe, name)
    taken = [each.name for each in recipe.stages]
    new = next(free for number in count(2) if (free := f"{name}-{number}") not in taken)
    newest = {role: each.name for each in recipe.stages for role in get_stage(each.kind).outputs}
    inputs = (f" --set {role}={source}" for role, source in stage.inputs.items() if newest.get(role, source) != source)
    return f"--name {new}{''.join(inputs)}"


def find_stage(recipe: Recipe, name: str) -> Stage:
    """The stage of this name."""
    return next(stage for stage in recipe.stages if stage.name == name)


def free_name(folder: Path) -> Path:
    """A name beside the folder that is not taken."""
    return next(path for number in count(2) if not (path := folder.with_name(f"{folder.name}-{number}")).exists())


def new_recipe(
    name: str,
    entry: Mapping[str, Any],
    start: NewRunOptions,
    overrides: list[str] | None,
    served: Mapping[str, Any] | None = None,
) -> Recipe:
    """The recipe of a new run with one stage. --data is a data set, or a question file to train on.

    `served`: the servers of the model, as `KEYS` names their settings.
    """
    typed, plain = start.typed(), given(policy=start.model)
    if served:
        typed, plain = {**typed, **served, "engine": "openai"}, {**plain, "server": {"model": start.model}}
    if (data := typed.get("data", "")) and data not in DATA_SETS and expand_path(data).is_file():
        plain["data"] = {"train": typed.pop("data"), "dev": start.dev}
    elif start.dev is not None:  # a missing file is reported as an unknown name
        raise StepladderError(f"--dev needs a question file as --data, and {data or 'atlas'} is none")
    shared = with_settings(plain, typed).plain()
    plain = {"name": entry["kind"], "seed": start.seed or 0, **shared, "stages": {name: dict(entry)}}
    return Recipe.read(_overridden(plain, name, overrides), name)


def extend_recipe(
    run: Path,
    name: str,
    entry: Mapping[str, Any],
    overrides: list[str] | None,
    *,
    named: Mapping[str, Any] | None = None,
    served: Mapping[str, Any] | None = None,
    sources: Mapping[str, Any] | None = None,
    alternative: str = "",
) -> Recipe:
    """The recipe of a run with one more stage, which replaces a stage of the same name.

    `named`: the run's agent file, if the user named it (`agent`, `trust_agent`). `served`: the model behind servers
    that plays the stage. `sources` are stages to insert before it. `alternative` ends the error about a missing input.
    """
    folder = RunFolder.open(run)
    plain = folder.recipe().plain()
    agent = (named or {}).get("agent", plain["agent"])
    if agent != plain["agent"] and not (is_agent_file(agent) and is_agent_file(plain["agent"])):
        raise StepladderError(f"--agent {agent}: the agent was set when the run {run} was started: leave it out")
    if named:
        plain["agent"] = with_settings({}, named).agent
    if served:
        typed = {KEYS.get(key, key).removeprefix("server."): value for key, value in served.items()}
        plain["server"] = {**plain.get("server", {}), **typed}  # a budget of the run stays
    kind = plain["stages"].get(name, entry)["kind"]
    if kind != entry["kind"]:
        raise StepladderError(f"the run {run} already has a stage '{name}' of kind {kind}: choose another --name")
    before = {**_before(plain["stages"], name), **(sources or {})}
    later = {each: stage for each, stage in plain["stages"].items() if each not in (*before, name)}
    changed = _overridden({**plain, "stages": {**before, name: dict(entry), **later}}, name, overrides)
    try:
        recipe = Recipe.read(changed, name)
    except MissingInput as error:
        raise missing_input(run, error.role, alternative) from error
    inputs = finished_inputs(folder, recipe, name)
    changed["stages"][name] = {**inputs, **changed["stages"][name]}
    return Recipe.read(changed, name) if inputs else recipe


def finished_inputs(run: RunFolder, recipe: Recipe, name: str) -> dict[str, str]:
    """By role: the newest finished stage, where a stage would take an input of a newer one that is not finished.

    A failed stage is skipped this way.
    """
    before = list(takewhile(lambda stage: stage.name != name, recipe.stages))
    found: dict[str, str] = {}
    for role, source in find_stage(recipe, name).inputs.items():
        writers = [each.name for each in before if role in get_stage(each.kind).outputs]
        finished = [each for each in writers if run.done(each) is not None]
        if source in writers and source not in finished and finished:
            found[role] = finished[-1]
    return found


def stages_before(run: Path, name: str) -> dict[str, Any]:
    """The stages of a run before the one with this name, or all of them, as plain data."""
    return _before(RunFolder.open(run).recipe().plain()["stages"], name)


def missing_input(run: Path, role: str, alternative: str = "") -> StepladderError:
    """The error if a run lacks something, with the command that makes it."""
    what, command = _COMMANDS[role]
    return StepladderError(f"the run {run} has no {what} yet: {command.format(run=run)}{alternative}")


def output_of(run: Path, role: str, stage: str | None = None) -> Path:
    """The output of a role in a run: of the named stage, or the newest. Raises if there is none."""
    paths = RunFolder.open(run).outputs(role)
    if not paths:
        raise missing_input(run, role)
    if stage is not None and stage not in paths:
        raise unknown_name(f"stage with {_COMMANDS[role][0]}", stage, paths)
    return paths[stage or list(paths)[-1]]


def _overridden(plain: Any, name: str, overrides: list[str] | None) -> Any:
    for change in overrides or ():
        _check_of_stage(change, plain["stages"][name]["kind"], name)
        plain = override(plain, change.removeprefix(f"stages.{name}."), within=("stages", name))
    return plain


def _check_of_stage(change: str, kind: str, name: str) -> None:
    """Raise if --set names a setting of the whole run, which a stage has not."""
    key = change.partition("=")[0].partition(".")[0].strip()
    if key in SharedConfig.model_fields and key not in (*get_stage(kind).config.model_fields, *get_stage(kind).inputs):
        raise StepladderError(
            f"--set {change}: {key} belongs to the whole run, not to the stage '{name}'; set it where the run starts: "
            f"`stepladder run RECIPE --out DIR --set {change}`"
        )


def _before(stages: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(takewhile(lambda each: each[0] != name, stages.items()))


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
        if as_json:
            print_json({**recipe_info(recipes[name]), "text": text})
        else:
            typer.echo(text, nl=False)
        return
    found = [recipe_info(path) for path in recipes.values()]
    if as_json:
        print_json(found)
        return
    for each in found:
        table = Table.grid(padding=(0, 1, 0, 2), pad_edge=True)
        table.add_row("[dim]trains[/]", printable(f"{each['model']} on {each['data']}"))
        table.add_row("[dim]needs[/]", printable(each["needs"]))
        table.add_row("[dim]time[/]", printable(each["time"]))
        OUT.print(f"[bold]{each['name']}[/]: {printable(each['about'])}", table, sep="\n", highlight=False)
    say("\n`stepladder recipes NAME` shows one with its comments; `stepladder run NAME --out DIR` runs it")
