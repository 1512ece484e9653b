"""Recipes from what was typed: a run that begins, or a run with one more stage.

In: a stage as plain data, and --set changes of it. Out: a `Recipe`; where nothing makes what the stage takes, an error
with the command that does.
"""

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from stepladder.cli.options import path_of
from stepladder.core.errors import StepladderError
from stepladder.data import DATA_SETS
from stepladder.pipeline.recipe import Recipe, override
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import PAIRS, REWARD, TREES
from stepladder.pipeline.stages import get_stage

_RUN = typer.Option(
    "--run", parser=path_of, help="A run to add the stage to: its newest policy, its agent, its data.", metavar="DIR"
)
RunToExtend = Annotated[Path, _RUN]
RunToExtendOrNone = Annotated[Path | None, _RUN]
StageName = Annotated[
    str | None, typer.Option("--name", help="Name of the stage in the run, so that it can hold several of a kind.")
]

#: By role: what a run may lack, and the command that makes it.
_MAKERS = {
    TREES: ("trees", "explore", "them"),
    PAIRS: ("pairs", "pairs", "them"),
    REWARD: ("reward model", "train prm", "one"),
}


def given(**values: Any) -> dict[str, Any]:
    """The values that were given."""
    return {name: value for name, value in values.items() if value is not None}


def new_run(
    name: str,
    stages: Mapping[str, Any],
    *,
    model: str = "nano",
    agent: str = "prorag",
    data: str = "atlas",
    dev: Path | None = None,
    index: str | None = None,
    k: int = 3,
    world_seed: int = 0,
    seed: int = 0,
) -> dict[str, Any]:
    """A recipe of these stages, as plain data. `data` is a data set, or a question file to train on."""
    by_name = data in DATA_SETS or not path_of(data).is_file()  # a name that is wrong is explained as a name
    if by_name and dev is not None:
        raise StepladderError(f"--dev goes with a question file as --data; {data} is none")
    return {
        "name": name,
        "seed": seed,
        "policy": model,
        "agent": agent,
        "data": {
            "world_seed": world_seed,
            "index": index,
            **({"name": data} if by_name else {"train": data, "dev": dev}),
        },
        "search": {"k": k},
        "stages": dict(stages),
    }


def extended(
    run: Path,
    name: str,
    entry: Mapping[str, Any],
    overrides: list[str] | None,
    *,
    sources: Mapping[str, Any] | None = None,
    otherwise: str = "",
) -> Recipe:
    """The recipe of a run with one more stage, or with this one in the place of its namesake.

    `sources` are stages to put before it; `otherwise` says how to do without what the run may lack.
    """
    folder = RunFolder.open(run)
    plain = folder.recipe().plain()
    kind = plain["stages"].get(name, entry)["kind"]
    if kind != entry["kind"]:
        raise StepladderError(f"'{name}' is a stage of the kind {kind} in the run {run}: choose another --name")
    before = {**_before(plain["stages"], name), **(sources or {})}
    stages = {**before, name: {**finished_sources(folder, before, entry, _where(name)), **entry}}
    stages |= {each: stage for each, stage in plain["stages"].items() if each not in stages}
    changed = _changed({**plain, "stages": stages}, name, overrides)
    for role in _lacking(changed["stages"], name):
        if role in _MAKERS:
            raise nothing_yet(run, role, otherwise)
    return Recipe.read(changed, name)


def finished_sources(
    folder: RunFolder, before: Mapping[str, Any], entry: Mapping[str, Any], where: str = ""
) -> dict[str, str]:
    """By role the newest stage that is done, where one behind it is not: what failed must not be in the way.

    `where` begins the message of an error in the settings of `entry`.
    """
    found: dict[str, str] = {}
    for role in _taken(entry, where):
        makers = [each for each, stage in before.items() if role in get_stage(stage["kind"]).outputs]
        done = [each for each in makers if folder.done(each) is not None]
        if done and done[-1] != makers[-1]:
            found[role] = done[-1]
    return found


def stages_before(run: Path, name: str) -> dict[str, Any]:
    """The stages of a run that one of this name can take from, as plain data: those before its namesake, or all."""
    return _before(RunFolder.open(run).recipe().plain()["stages"], name)


def nothing_yet(run: Path, role: str, otherwise: str = "") -> StepladderError:
    """The error where a run lacks something, with what to do about it."""
    what, command, it = _MAKERS[role]
    return StepladderError(f"the run {run} has no {what} yet: `stepladder {command} --run {run}` makes {it}{otherwise}")


def read(plain: Any, name: str, overrides: list[str] | None) -> Recipe:
    """A recipe, with --set changes of its stage of that name. Errors begin with the name."""
    return Recipe.read(_changed(plain, name, overrides), name)


def _changed(plain: Any, name: str, overrides: list[str] | None) -> Any:
    for change in overrides or ():
        plain = override(plain, change.removeprefix(f"stages.{name}."), within=("stages", name))
    return plain


def _before(stages: Mapping[str, Any], name: str) -> dict[str, Any]:
    return dict(takewhile(lambda each: each[0] != name, stages.items()))


def _lacking(stages: Mapping[str, Any], name: str) -> list[str]:
    """The roles that a stage takes, and that nobody named and no stage before it makes."""
    made = {role for each in _before(stages, name).values() for role in get_stage(each["kind"]).outputs}
    entry = stages[name]
    return [role for role in _taken(entry, _where(name)) if role not in made and entry.get(role) is None]


def _taken(entry: Mapping[str, Any], where: str) -> list[str]:
    """The roles that a stage takes with the settings that it has."""
    kind = get_stage(str(entry["kind"]))
    own = {key: value for key, value in entry.items() if key in kind.config.model_fields}
    left_out = kind.unused_inputs(kind.config.read(own, where))
    return [role for role in kind.inputs if role not in left_out]


def _where(name: str) -> str:
    """How errors in the settings of a stage begin."""
    return f"{name}: stages.{name}"
