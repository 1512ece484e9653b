"""The arms of a study as recipes: what they share, where they differ, and whether they fit the study.

In: a `Study` and overrides of the user. Out: `prepare` resolves which stages are shared and which one is the last, or
raises an error that names the arm and the setting. `recipe_of` is the recipe of one run.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepladder.agents import name_agent
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.pipeline.fingerprint import changes, flat
from stepladder.pipeline.recipe import Recipe, Stage, join_override, load_recipe, split_override
from stepladder.pipeline.stage import EVALUATION, EXAMINATION
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.studies.study_spec import Study
from stepladder.train.grpo.config import GRPOConfig
from stepladder.train.loop.config import PolicyTrainingConfig, selection_questions

#: The numbers of an evaluation; the summaries of other stages depend on their settings.
_OF_EVALUATIONS = ("f1", "em", "validity", "searches", "by_hops", "failed")
_OF_INTERVALS = ("mean", "low", "high")
_OF_HOPS = ("f1", "em", "questions")
#: Those of evaluations during training, after the name of their split.
_OF_CHECKPOINTS = ("f1", "em", "failed", "seconds")
_SPLITS = ("dev", "test")
#: Settings of the data that choose dev and test questions.
_DATA = ("name", "world_seed", "dev", "test", "holdout")


def prepare(study: Study, overrides: Sequence[str] = ()) -> Study:
    """The study with overrides of the user for all arms, and with its first and last stages resolved."""
    study = _with_overrides(study, overrides)
    recipes = {arm: recipe_of(study, study.seed_list[0], arm) for arm in study.arms}
    for arm, recipe in recipes.items():
        _check_stages(study, arm, [stage.name for stage in recipe.stages])
    last = study.last or recipes[study.baseline].stages[-1].name
    same = _shared_stages(recipes)
    _check_difference(study, recipes)
    if study.shared is not None and study.shared not in same:
        raise StepladderError(f"study {study.name}: {_changed_shared(study, recipes)}")
    shared = study.shared or (same[-1] if same else None)
    study = study.model_copy(update={"shared": shared, "last": last})
    _check_gates(study, shared_recipe(study, study.seed_list[0]) if shared else None)
    for arm, recipe in recipes.items():
        _check_estimand(study, arm, recipe, same[: same.index(shared) + 1] if shared else [])
    _check_questions(study, recipes)
    _check_by_hops(study, recipes[study.baseline], same)
    return study


def recipe_of(study: Study, seed: int, arm: str) -> Recipe:
    """The recipe of a run, up to the last stage of the study."""
    own = [*map(join_override, study.arms[arm], study.arms[arm].values()), f"seed={seed}"]
    common = study.overrides if study.policy is None else {**study.overrides, "policy": study.policy}
    defaults = list(map(join_override, common, common.values()))  # some may be for some arms only
    recipe = load_recipe(study.recipe, own, defaults=defaults)
    names = [stage.name for stage in recipe.stages]
    return replace(recipe, stages=recipe.stages[: names.index(study.last) + 1]) if study.last in names else recipe


def shared_recipe(study: Study, seed: int) -> Recipe:
    """The recipe of the stages that all arms of a seed share."""
    recipe = recipe_of(study, seed, study.baseline)
    names = [stage.name for stage in recipe.stages]
    return replace(recipe, stages=recipe.stages[: names.index(str(study.shared)) + 1])


def _with_overrides(study: Study, overrides: Sequence[str]) -> Study:
    given = dict(map(split_override, overrides))
    reserved = {name for arm in study.arms.values() for name in arm} | {"seed"}
    for name in given:
        if name in reserved:
            raise StepladderError(
                f"--set {name}: the study {study.name} sets this itself in each run (--seeds: number of seeds); "
                "to choose the value, use `stepladder run` with your own recipe"
            )
    study = study.model_copy(update={"overrides": {**study.overrides, **given}})
    if "agent" in given:
        name_agent(recipe_of(study, study.seed_list[0], study.baseline).shared.agent)
    return study


def _check_stages(study: Study, arm: str, names: Sequence[str]) -> None:
    """The stages that a study names are stages of every arm."""
    keys = {"last": study.last, "shared": study.shared, "estimand.stage": study.estimand.stage}
    keys["by_hops"] = study.by_hops
    for key, stage in keys.items():
        if stage is not None and stage not in names:
            where = f"study {study.name}: {key}, in the arm {arm}:"
            raise StepladderError(f"{where} {unknown_name('stage', stage, names)} ({study.recipe})")


def _shared_stages(recipes: dict[str, Recipe]) -> list[str]:
    """The names of the first stages, as far as they are the same in all recipes."""
    first, *others = recipes.values()
    if any(_shared_settings(first) != _shared_settings(each) for each in others):
        return []
    same: list[str] = []
    for stages in zip(*(each.stages for each in recipes.values()), strict=False):
        if len({repr((stage.name, stage.plain())) for stage in stages}) > 1:
            break
        same.append(stages[0].name)
    return same


def _shared_settings(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.plain().items() if name != "stages"}


def _check_difference(study: Study, recipes: dict[str, Recipe]) -> None:
    """No two arms are the same."""
    seen: dict[str, str] = {}
    for arm, recipe in recipes.items():
        other = seen.setdefault(repr(recipe.plain()), arm)
        if other != arm:
            raise StepladderError(f"study {study.name}: the arms {other} and {arm} are the same: nothing to compare")


def _changed_shared(study: Study, recipes: dict[str, Recipe]) -> str:
    """Which arm changes a stage that the arms are to share, and how."""

    def until_shared(recipe: Recipe) -> dict[str, Any]:
        names = [stage.name for stage in recipe.stages]
        kept = recipe.stages[: names.index(str(study.shared)) + 1]
        stages = dict(flat("stages", {stage.name: stage.plain() for stage in kept}))
        return dict(flat("", _shared_settings(recipe))) | stages

    baseline = until_shared(recipes[study.baseline])
    for arm, recipe in recipes.items():
        if found := changes(baseline, until_shared(recipe)):
            change = found[0].removeprefix(".")
            return (
                f"the arm {arm} changes a stage that all arms share (up to {study.shared}): {change}. "
                "Name an earlier stage in `shared`, or leave it out"
            )
    raise AssertionError("the stages differ")


def _check_gates(study: Study, shared: Recipe | None) -> None:
    """A gate is about a stage that all arms share."""
    names = [] if shared is None else [stage.name for stage in shared.stages]
    for name, gate in study.gates.items():
        where = f"study {study.name}: gates.{name}"
        if gate.stage not in names:
            kept = f"they share {', '.join(names)}" if names else "they share none"
            raise StepladderError(f"{where}: {gate.stage} is no stage that all arms share: {kept}")
        if len(gate.metrics) > 2:
            raise StepladderError(f"{where}: expected one number, or two as `first - second`, found {gate.metric!r}")
        kind = get_stage(next(stage.kind for stage in shared.stages if stage.name == gate.stage)) if shared else None
        if kind is not None and EVALUATION in kind.outputs:
            for metric in gate.metrics:
                _check_number(metric, where)


def _check_by_hops(study: Study, recipe: Recipe, same: Sequence[str]) -> None:
    """What is shown by number of hops is an evaluation behind the shared stages."""
    if study.by_hops is None:
        return
    kind = next(stage.kind for stage in recipe.stages if stage.name == study.by_hops)
    if EVALUATION not in get_stage(kind).outputs or study.by_hops in same:
        raise StepladderError(
            f"study {study.name}: by_hops: expected an evaluation (kind: eval) of the arms, found {study.by_hops}"
        )


def _check_estimand(study: Study, arm: str, recipe: Recipe, shared: Sequence[str]) -> None:
    estimand, where = study.estimand, f"study {study.name}: estimand"
    if estimand.stage in shared:
        raise StepladderError(f"{where}: the stage {estimand.stage} is the same in all arms (they share {shared[-1]})")
    stage = stage_of_estimand(study, recipe)
    kind = get_stage(stage.kind)
    if estimand.last_checkpoints is not None:
        if not kind.trains:
            raise StepladderError(f"{where}: last_checkpoints needs a stage that trains; {stage.name} is {stage.kind}")
        _check_checkpoints(study, arm, stage)
    elif EVALUATION in kind.outputs:
        _check_number(estimand.metric, where)


def _check_number(metric: str, where: str) -> None:
    """The metric is a number of an evaluation: f1, f1.low, by_hops.2.f1."""
    name, *parts = metric.split(".")
    if name not in _OF_EVALUATIONS:
        raise StepladderError(f"{where}: {unknown_name('metric', metric, _OF_EVALUATIONS)}")
    if name == "by_hops":
        known = len(parts) == 2 and parts[0].isdecimal() and parts[1] in _OF_HOPS
        expected = f"by_hops.2.f1, with the number of hops and one of {', '.join(_OF_HOPS)}"
    elif name in ("f1", "em"):
        known = not parts or (len(parts) == 1 and parts[0] in _OF_INTERVALS)
        expected = f"{name}, or {name}. and one of {', '.join(_OF_INTERVALS)}"
    else:
        known, expected = not parts, name
    if not known:
        raise StepladderError(f"{where}: metric: expected {expected}, found {metric!r}")


def _check_checkpoints(study: Study, arm: str, stage: Stage) -> None:
    """The stage has the metric at enough evaluations, as far as that can be known before it runs."""
    metric, settings, where = study.estimand.metric, stage.settings, f"study {study.name}: estimand"
    named, _, number = metric.partition("_")
    if named not in _SPLITS:
        return
    split = getattr(settings, "eval_split", "dev")
    if named != split:
        key = f"stages.{stage.name}.eval_split"
        raise StepladderError(f"{where}: {metric}, but the arm {arm} evaluates checkpoints on {split} ({key})")
    if getattr(settings, "dev_questions", None) == 0:
        raise StepladderError(f"{where}: the arm {arm} has no dev evaluations: set stages.{stage.name}.dev_questions")
    if not isinstance(settings, PolicyTrainingConfig) or stage.kind == "dpo":  # which measure held-out pairs as well
        return
    if number not in _OF_CHECKPOINTS:
        raise StepladderError(
            f"{where}: {unknown_name('metric', metric, [f'{split}_{each}' for each in _OF_CHECKPOINTS])}"
        )
    most, wanted = _most_evaluations(settings), study.estimand.last_checkpoints
    if most is not None and wanted is not None and most < wanted:
        raise StepladderError(
            f"{where}: the mean of the last {wanted} checkpoints, but in the arm {arm} the stage {stage.name} has at "
            f"most {most} evaluations: lower stages.{stage.name}.eval_steps, or last_checkpoints"
        )


def _most_evaluations(settings: PolicyTrainingConfig) -> int | None:
    """No training has more dev evaluations than this; None if the number of its updates is not known before."""
    start = int(settings.eval_on_start)
    if isinstance(settings, GRPOConfig):
        batches = settings.num_train_epochs * settings.questions * settings.num_generations / settings.batch_size
        per_epoch = max(settings.questions * settings.num_generations // settings.batch_size, 1)
        every = settings.eval_steps or per_epoch * settings.num_iterations
        return max(math.ceil(batches * settings.num_iterations / every), 1) + start
    return None if settings.eval_steps else math.ceil(settings.num_train_epochs) + start


def _check_questions(study: Study, recipes: dict[str, Recipe]) -> None:
    """All arms are measured on the same questions, else differences would not be paired."""
    measured = {arm: _measured_on(study, recipe) for arm, recipe in recipes.items()}
    baseline = measured[study.baseline]
    for arm, settings in measured.items():
        if found := changes(baseline, settings):
            raise StepladderError(
                f"study {study.name}: the arm {arm} is measured on other questions than {study.baseline}: "
                f"{'; '.join(found)}. Differences are paired by question: these settings must be the same in all arms"
            )


def _measured_on(study: Study, recipe: Recipe) -> dict[str, Any]:
    """The settings that choose the questions of the estimand. The world of a reward model's examination may differ."""
    data, stage = recipe.shared.data, stage_of_estimand(study, recipe)
    names = _DATA if not data.holdout else (*_DATA, "train")  # held out from it
    outputs = get_stage(stage.kind).outputs
    chosen: tuple[str, ...] = ()
    if EVALUATION in outputs:
        chosen = ("split", "limit")
    elif EXAMINATION in outputs:
        chosen = ("split", "questions")
    elif study.estimand.metric.startswith(tuple(f"{split}_" for split in _SPLITS)):
        chosen = ("dev_questions", "eval_split")
    found = {f"data.{name}": getattr(data, name) for name in names}
    return found | {f"stages.{stage.name}.{name}": getattr(stage.settings, name, None) for name in chosen}


def stage_of_estimand(study: Study, recipe: Recipe) -> Stage:
    """The stage of a recipe that the estimand is read from."""
    return next(stage for stage in recipe.stages if stage.name == study.estimand.stage)


def selecting_stages(study: Study) -> list[str]:
    """The stages of the baseline behind the shared ones that keep their best checkpoint by dev questions."""
    stages = own_stages(study, recipe_of(study, study.seed_list[0], study.baseline))
    return [stage.name for stage in stages if selection_questions(stage.settings)]


def own_stages(study: Study, recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of an arm behind the shared ones."""
    names = [stage.name for stage in recipe.stages]
    return recipe.stages[names.index(study.shared) + 1 :] if study.shared in names else recipe.stages
