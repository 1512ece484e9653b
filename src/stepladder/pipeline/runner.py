"""Runs a recipe in a folder: finished stages are skipped, interrupted ones resume, the others run.

In: a `Recipe` and a folder. Out: a `RunReport`. Running the same recipe again recomputes nothing. If the recipe or its
input files changed, the stale stages are an error (`StaleStages`), unless `update` allows recomputing them.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from stepladder.core.errors import StepladderError
from stepladder.core.io import launch
from stepladder.core.io.interrupts import check_interrupt
from stepladder.core.io.known_servers import name_servers
from stepladder.core.io.masking import mask
from stepladder.core.trace_printer import printable
from stepladder.pipeline.fingerprint import Ingredients, all_ingredients, changes, content, fingerprint
from stepladder.pipeline.pair_folder import marked_pairs
from stepladder.pipeline.policy_choice import PolicyChoice, Regression, choose_policy, regressions, score_policies
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.resources import BASE, ORACLE, SERVER, RunContext
from stepladder.pipeline.run_folder import DamagedRecord, RunFolder, StageRecord, claim
from stepladder.pipeline.session_info import describe_session
from stepladder.pipeline.stage import POLICY, Task
from stepladder.pipeline.stages import get_stage
from stepladder.train.launch.team import Team
from stepladder.train.loop.config import TrainingConfig
from stepladder.train.loop.trackers import check_trackers


@dataclass(frozen=True, slots=True)
class RunReport:
    """A finished run."""

    recipe: Recipe
    folder: Path
    #: One record per finished stage, in the recipe's order.
    stages: tuple[StageRecord, ...]
    #: Stages that had been finished before.
    skipped: tuple[str, ...]
    #: The policy that `ask --run`, `eval --run` and `serve-agent --run` use; None without a trained one.
    choice: PolicyChoice | None
    #: Stages whose policy is worse on dev questions than the one they started from, by name.
    worse: Mapping[str, Regression]

    @property
    def policy(self) -> Path | None:
        """The model folder of the chosen policy."""
        return None if self.choice is None else self.choice.path

    @classmethod
    def of(cls, run: RunFolder, recipe: Recipe, stages: Sequence[StageRecord], skipped: Iterable[str]) -> "RunReport":
        """The report of a run with these finished stages."""
        trained = any(POLICY in stage.outputs for stage in stages)
        choice = choose_policy(run) if trained else None
        return cls(recipe, run.path, tuple(stages), tuple(skipped), choice, regressions(run))


@dataclass(frozen=True, slots=True)
class StaleStage:
    """A stage in a run folder whose settings or inputs have changed since."""

    name: str
    #: What changed.
    reason: str
    #: Bytes that deleting it frees.
    size: int

    def __str__(self) -> str:
        size = self.size
        return f"{self.name} ({f'{size / 1e6:,.1f} MB' if size >= 1e5 else f'{size / 1e3:,.1f} kB'})"


class StaleStages(StepladderError):
    """A recipe needs stages to be deleted and recomputed, and `update` does not allow it."""

    def __init__(self, folder: Path, stages: Sequence[StaleStage], keep: str = "Another --out keeps it") -> None:
        """`keep`: how to keep the results, as the start of a sentence."""
        self.folder, self.stages = folder, stages
        super().__init__(
            f"the stage '{stages[0].name}' in {folder} is stale: {stages[0].reason}. {keep}; "
            f"--update deletes {', '.join(map(str, stages))} and computes again what the recipe needs"
        )


def stale_stages(recipe: Recipe, folder: Path) -> list[StaleStage]:
    """The stages in a run folder that `run_recipe` would delete with `update`."""
    return _stale(RunFolder(folder), recipe, all_ingredients(recipe, marked_pairs(recipe, folder)))


def run_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    update: bool = False,
    confirm: Callable[[Sequence[StaleStage]], None] | None = None,
    only: str | None = None,
    console: Console | None = None,
) -> RunReport:
    """Run every stage that is not done; with `only`, this stage, the stages it depends on, and stale stages.

    `update` deletes stale stages first; `confirm` is called with them before that and may raise. Progress is printed to
    `console`. Under torchrun or `accelerate launch` all processes call it: the main process runs the recipe, and the
    others take part in the stages that train.
    """
    team = Team(recipe.shared.device)
    if not launch.is_main():
        team.follow(_take_part)
        run = RunFolder(folder)
        done = [record for stage in recipe.stages if (record := run.done(stage.name)) is not None]
        return RunReport.of(run, recipe, done, ())
    console = console or Console(stderr=True)
    with team.led():
        return _run(recipe, folder, team, console, update=update, confirm=confirm, only=only)


def _run(
    recipe: Recipe,
    folder: Path,
    team: Team,
    console: Console,
    *,
    update: bool,
    confirm: Callable[[Sequence[StaleStage]], None] | None,
    only: str | None,
) -> RunReport:
    name_servers(recipe.plain(), new=True)
    marked = marked_pairs(recipe, folder)
    ingredients = all_ingredients(recipe, marked)
    with claim(folder) as run, closing(RunContext(recipe.shared, console)) as context:
        stale = _stale(run, recipe, ingredients)
        if stale and not update:
            raise StaleStages(folder, stale)
        outdated = [stage.name for stage in stale]
        wanted = _needed(recipe, [only, *outdated] if only is not None else [stage.name for stage in recipe.stages])
        left = [name for name in wanted if name in outdated or run.done(name) is None]
        for stage in recipe.stages:  # fail before hours are spent or anything is deleted
            if stage.name in left:
                own = getattr(stage.settings, "report_to", ())
                check_trackers(recipe.shared.report_to if own is None else own)
                get_stage(stage.kind).check(stage.settings, context)
                if isinstance(stage.settings, TrainingConfig) and launch.world_size() > 1:
                    from stepladder.train.launch.sharding import check_launch  # imports torch

                    check_launch(stage.settings)
                if stage.inputs.get("policy") not in (None, ORACLE, SERVER):
                    context.check_decoding(trains=stage.kind == "grpo")
        session = describe_session(recipe) if left else None
        if stale and confirm is not None:
            confirm(stale)
        for each in stale:
            run.remove(each.name, but=_persistent_files(recipe, each.name))
            _print(console, f"{each.name}: stale ({each.reason}), removed")
        if session is not None:
            run.add_session(session)  # first, because run.json marks the folder as a run
        run.write_recipe(recipe)
        if recipe.left_out:
            _print(console, f"without effect beside --set, left out: {', '.join(recipe.left_out)}")
        records, skipped = [], []
        for stage in recipe.stages:
            check_interrupt()
            record = run.done(stage.name)
            if record is None and stage.name not in left:
                _print(console, f"{stage.name}: not done, unchanged")
                continue
            if record is None:
                left_out = marked_pairs(recipe, folder).get(stage.name, frozenset())
                if left_out != marked.get(stage.name, frozenset()):  # pairs were marked while earlier stages ran
                    marked = {**marked, stage.name: left_out}  # those stages keep the marks that they were run with
                    ingredients = all_ingredients(recipe, marked)
                record = _run_stage(stage, run, recipe, context, ingredients[stage.name], left_out, team)
            else:
                skipped.append(stage.name)
                _print(console, f"{stage.name}: done, {record.seconds:,.0f} s, skipped")
            records.append(record)
            if POLICY in record.outputs:
                score_policies(run, recipe, context)
        return RunReport.of(run, recipe, records, skipped)


def _needed(recipe: Recipe, names: Iterable[str]) -> list[str]:
    """These stages and the stages they depend on, in order."""
    needed = set(names)
    for stage in reversed(recipe.stages):
        if stage.name in needed:
            needed.update(stage.inputs.values())
    return [stage.name for stage in recipe.stages if stage.name in needed]


def _persistent_files(recipe: Recipe, name: str) -> tuple[str, ...]:
    """The files of a stage that stay when it is deleted."""
    return next((get_stage(stage.kind).persistent_files for stage in recipe.stages if stage.name == name), ())


def _stale(run: RunFolder, recipe: Recipe, ingredients: dict[str, Ingredients]) -> list[StaleStage]:
    """Stale stages in the folder, in order."""
    found: dict[str, str] = {}
    wanted = [stage.name for stage in recipe.stages]
    for name in sorted(run.stage_names(), key=lambda name: wanted.index(name) if name in wanted else len(wanted)):
        try:
            record = run.known(name)
        except DamagedRecord as error:
            found[name] = str(error)
            continue
        if record is None:
            continue
        if name not in wanted:
            found[name] = f"stages.{name}: {record.kind} -> nothing"
        elif record.fingerprint != fingerprint(ingredients[name]):
            found[name] = "; ".join(changes(record.ingredients, ingredients[name]))
        elif touched := _touched(run.path / name, record):
            found[name] = f"{', '.join(touched)} was modified after the stage ended (delete it to have it recomputed)"
    return [
        StaleStage(name, reason, run.size(name, but=_persistent_files(recipe, name))) for name, reason in found.items()
    ]


def _touched(folder: Path, record: StageRecord) -> list[str]:
    """Outputs that were modified after the stage ended."""
    paths = {role: folder / record.outputs[role] for role in record.contents}
    return [str(path) for role, path in paths.items() if path.exists() and content(path) != record.contents[role]]


def _run_stage(
    stage: Stage,
    run: RunFolder,
    recipe: Recipe,
    context: RunContext,
    ingredients: Ingredients,
    marked: frozenset[str],
    team: Team,
) -> StageRecord:
    console = context.console
    before = run.known(stage.name)
    record = StageRecord(
        name=stage.name,
        kind=stage.kind,
        fingerprint=fingerprint(ingredients),
        ingredients=ingredients,
        inputs=dict(stage.inputs),
        attempts=before.attempts + 1 if before else 1,
        seconds=before.seconds if before else 0.0,
        cpu_seconds=before.cpu_seconds if before else 0.0,
    )
    folder = run.begin(record)
    _print(console, f"{stage.name}: {'resumes' if before else 'starts'}")
    kind = get_stage(stage.kind)
    inputs = {role: _path_of(role, source, run, recipe) for role, source in stage.inputs.items()}
    timer = time.monotonic(), time.process_time()
    try:
        task = Task(stage.name, folder, recipe.stage_seed(stage.name), inputs, marked)
        work = partial(kind.run, stage.settings, context, task)
        result = team.together((recipe, task), work) if kind.trains else work()
    except BaseException as error:
        run.pause(_timed(record, *timer))
        if isinstance(error, Exception):  # not Ctrl-C
            run.fail(stage.name, error)
        raise
    missing = [role for role in kind.outputs if role not in result.outputs or not result.outputs[role].exists()]
    if missing:
        raise StepladderError(f"the stage '{stage.name}' ended without its outputs: {', '.join(missing)}")
    record = replace(
        _timed(record, *timer),
        summary=dict(result.summary),
        outputs={
            role: path.resolve().relative_to(folder.resolve()).as_posix() for role, path in result.outputs.items()
        },
        contents={role: content(path) for role, path in result.outputs.items()},
    )
    run.finish(record)
    _print(console, f"{stage.name}: done, {record.seconds:,.0f} s{_brief(record.summary)}")
    return record


def _timed(record: StageRecord, wall: float, processor: float) -> StageRecord:
    """The record with the seconds since these times of the two clocks."""
    used = None if record.cpu_seconds is None else record.cpu_seconds + time.process_time() - processor
    return replace(record, seconds=record.seconds + time.monotonic() - wall, cpu_seconds=used)


def _take_part(order: tuple[Recipe, Task]) -> None:
    """In another process than the main one: train a stage."""
    recipe, task = order
    name_servers(recipe.plain(), new=True)
    stage = next(stage for stage in recipe.stages if stage.name == task.name)
    with closing(RunContext(recipe.shared, Console(quiet=True))) as context:
        get_stage(stage.kind).run(stage.settings, context, task)


def _path_of(role: str, source: str, run: RunFolder, recipe: Recipe) -> str:
    """The path of an input; a model name, `oracle` and `server` are returned unchanged."""
    if source in (ORACLE, SERVER):
        return source
    if source == BASE:
        return SERVER if recipe.shared.engine == "openai" else recipe.shared.policy
    record = run.done(source)
    assert record is not None, "stages run in order"
    return str(run.path / source / record.outputs[role])


def _brief(summary: dict[str, Any]) -> str:
    """The first numbers of a summary and the dev score, for one line of the log."""
    means = {name: value.get("mean") if isinstance(value, dict) else value for name, value in summary.items()}
    numbers = [(name, value) for name, value in means.items() if isinstance(value, int | float)]
    brief = numbers[:4] + [each for each in numbers[4:] if each[0] == "best_dev_f1"]
    return "".join(f", {name} {value:.4g}" for name, value in brief)


def _print(console: Console, line: str) -> None:
    console.print(printable(mask(line)), highlight=False, soft_wrap=True)
