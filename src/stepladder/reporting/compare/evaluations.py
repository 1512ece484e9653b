"""Loads the evaluations to compare: those of runs, and those saved by `stepladder eval --out`.

In: `[LABEL=]PATH[:STAGE]` arguments. Out: one `EvaluationSource` per evaluation: its scores and its configuration. By
default the last evaluation of a run that is not the oracle's; `:STAGE` selects another one, `:*` all of them.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepladder.core.answer_metrics import QuestionScore
from stepladder.core.errors import StepladderError, unknown_name
from stepladder.core.io.files import expand_path
from stepladder.core.trace import StopReason
from stepladder.core.unused_settings import without_setting
from stepladder.evaluation.evaluator import load_scores
from stepladder.pipeline.policy_choice import Regression
from stepladder.pipeline.recipe import Stage
from stepladder.pipeline.resources import BASE, ORACLE, SERVER
from stepladder.pipeline.run_folder import RunFolder, read_json_object
from stepladder.pipeline.stage import EVALUATION, REWARD
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.compare.provenance import Provenance, ProvenanceResolver, producing_stage

_ALL = "*"
_RUN, _SCORES, _SUMMARY = "run.json", "scores.jsonl", "summary.json"
#: Fields of a saved evaluation that are part of its configuration.
_CONFIG_FIELDS = ("agent", "engine", "base_url", "api", "data", "world_seed", "split", "limit", "index", "settings")
#: Settings of a recipe that are not part of its configuration.
_NOT_CONFIG = ("seed", "device", "batch_size", "report_to", "stages")


@dataclass(frozen=True, slots=True)
class EvaluationSource:
    """One evaluation."""

    #: The user's label, if any.
    label: str | None
    #: The argument that selects it: PATH or PATH:STAGE.
    path: str
    #: Name of the recipe, or of the folder if the recipe is unknown.
    name: str
    stage: str
    agent: str
    #: Seed of the training run, or of the evaluation if the training run is unknown.
    seed: int | None
    #: Equal for evaluations that differ only in their seed.
    config_key: str
    #: Scores by question id, without cancelled questions.
    rows: Mapping[str, QuestionScore]
    #: Questions that were not evaluated because the evaluation was interrupted.
    cancelled: int
    #: None if the evaluated model was not trained by a run.
    provenance: Provenance | None
    #: Whether gold annotations were used to answer.
    upper_bound: bool
    #: Set if the stage that trained the evaluated policy ended worse than it began.
    worse: Regression | None


def load_sources(texts: Sequence[str], stage: str | None = None) -> list[EvaluationSource]:
    """The selected evaluations, in order. `stage`: the default evaluation of a run."""
    found: dict[str, EvaluationSource] = {}
    resolver = ProvenanceResolver()
    for text in texts:
        for source in _load(text, stage, resolver):
            if source.path in found:
                raise StepladderError(f"{source.path} is given twice; give each evaluation once")
            found[source.path] = source
    return list(found.values())


def parse_source(text: str) -> tuple[str | None, Path, str | None]:
    """Label, path and stage of an argument. An argument that exists as a whole is a path, even with `=` or `:` in it.

    >>> parse_source("mine=runs/nano:eval-sft")
    ('mine', PosixPath('runs/nano'), 'eval-sft')
    """
    if expand_path(text).exists():
        return None, expand_path(text), None
    label, equals, rest = text.partition("=")
    if not equals:
        label, rest = "", text
    before, colon, stage = rest.rpartition(":")
    if expand_path(rest).exists() or not colon or not before:
        return label.strip() or None, expand_path(rest), None
    return label.strip() or None, expand_path(before), stage


def _load(text: str, stage: str | None, resolver: ProvenanceResolver) -> list[EvaluationSource]:
    label, path, named = parse_source(text)
    if (path / _RUN).is_file():
        return _from_run(label, path, named or stage, resolver)
    if not (path / _SCORES).is_file():
        found = "has neither run.json nor scores.jsonl" if path.is_dir() else "does not exist"
        raise StepladderError(
            f"{path} {found}; expected a run (`stepladder run RECIPE --out DIR`) or a saved evaluation "
            "(`stepladder eval --out DIR`)"
        )
    if named is not None:
        raise StepladderError(f"{text}: {path} is a single evaluation without stages; remove ':{named}'")
    return [_saved(label, path, resolver)]


# --- runs -------------------------------------------------------------------------------------------------------


def _from_run(label: str | None, path: Path, named: str | None, resolver: ProvenanceResolver) -> list[EvaluationSource]:
    run = RunFolder.open(path)
    stages = [stage for stage in run.recipe().stages if EVALUATION in get_stage(stage.kind).outputs]
    if not stages:
        raise StepladderError(f"the recipe of the run {path} has no evaluation: add a stage of kind eval")
    if named == _ALL:
        done = [stage for stage in stages if run.done(stage.name) is not None]
        if not done:
            raise StepladderError(f"no evaluation of the run {path} is finished: resume the run")
        sources = [_evaluated(None, run, stage, resolver) for stage in done]
        # One label for several evaluations: the stage makes it unique.
        return [replace(each, label=f"{label} {each.stage}" if label else None) for each in sources]
    if named is not None:
        chosen = next((stage for stage in stages if stage.name == named), None)
        if chosen is None:
            raise unknown_name(f"evaluation of the run {path}", named, [stage.name for stage in stages])
    else:
        of_models = [stage for stage in stages if stage.inputs["policy"] != ORACLE]
        if not of_models:
            raise StepladderError(f"the run {path} evaluates only the oracle: select it with {path}:{stages[-1].name}")
        chosen = of_models[-1]
    return [_evaluated(label, run, chosen, resolver)]


def _evaluated(label: str | None, run: RunFolder, stage: Stage, resolver: ProvenanceResolver) -> EvaluationSource:
    if run.done(stage.name) is None:
        evaluations = (each.name for each in run.recipe().stages if EVALUATION in get_stage(each.kind).outputs)
        others = [name for name in evaluations if run.done(name) is not None]
        hint = f", or compare another evaluation: {run.path}:{others[-1]}" if others else ""
        raise StepladderError(f"the stage '{stage.name}' of the run {run.path} is not finished: resume the run{hint}")
    recipe, policy = run.recipe(), stage.inputs["policy"]
    guides = [(run.path, source) for role, source in stage.inputs.items() if role == REWARD]
    origin = (run.path, policy) if policy not in (ORACLE, SERVER) else None
    if policy == BASE:
        origin = producing_stage(recipe.shared.policy)
    provenance = None if origin is None else resolver.resolve([origin, *guides])
    stages = [] if provenance is None else provenance.names_in(run.path)
    plain = recipe.plain()
    config = {
        **{name: value for name, value in plain.items() if name not in _NOT_CONFIG},
        "stages": {name: without_setting(plain["stages"][name], ["report_to"]) for name in (*stages, stage.name)},
    }
    rows = load_scores(run.path / stage.name / EVALUATION)
    guide = plain["stages"][stage.name].get("guide") or {}
    return EvaluationSource(
        label,
        f"{run.path}:{stage.name}",
        recipe.name,
        stage.name,
        recipe.shared.agent,
        recipe.seed,
        json.dumps(config, sort_keys=True),
        *_evaluated_rows(rows),
        provenance,
        policy == ORACLE or guide.get("by") == "gold",
        None if origin is None else resolver.regression(*origin),
    )


# --- saved evaluations ------------------------------------------------------------------------------------------


def _saved(label: str | None, path: Path, resolver: ProvenanceResolver) -> EvaluationSource:
    """A saved evaluation. If its model was trained by a run, recipe and seed are those of the run."""
    if not (path / _SUMMARY).is_file():
        raise StepladderError(f"{path} is not a saved evaluation: it has no {_SUMMARY}")
    described = read_json_object(path / _SUMMARY)
    model = described.get("model", described.get("policy"))
    own: dict[str, Any] = {name: described.get(name) for name in _CONFIG_FIELDS}
    name, seed = path.resolve().name, described.get("seed")
    provenance: Provenance | None = None
    worse: Regression | None = None
    guide = described.get("guide") or {}
    guiding = producing_stage(guide.get("reward"))
    own["guide"] = {**guide, "reward": guide.get("reward") and _training_config(guiding, resolver)}
    if isinstance(model, str) and (origin := producing_stage(expand_path(model))) is not None:
        provenance = resolver.resolve([origin, *([guiding] if guiding else [])])
        worse = resolver.regression(*origin)
        recipe = RunFolder.open(origin[0]).recipe()
        own |= {"model": _training_config(origin, resolver), "seed": seed}
        name, seed = recipe.name, recipe.seed
    else:
        own["model"] = model
    return EvaluationSource(
        label,
        str(path),
        name,
        path.resolve().name,
        str(described.get("agent", "")),
        seed if isinstance(seed, int) else None,
        json.dumps(own, sort_keys=True),
        *_evaluated_rows(load_scores(path)),
        provenance,
        ORACLE in (model, described.get("engine")) or guide.get("by") == "gold",
        worse,
    )


def _training_config(origin: tuple[Path, str] | None, resolver: ProvenanceResolver) -> object:
    """The configuration of the stages that made a model: the same for all seeds."""
    if origin is None:
        return "of no run"
    recipe = RunFolder.open(origin[0]).recipe()
    plain = recipe.plain()["stages"]
    names = resolver.resolve([origin]).names_in(origin[0])
    return [recipe.name, {each: without_setting(plain[each], ["report_to"]) for each in names}]


def _evaluated_rows(rows: Iterable[QuestionScore]) -> tuple[dict[str, QuestionScore], int]:
    """Rows by question id, and the number of cancelled questions."""
    everything = list(rows)
    found = {row.question_id: row for row in everything if row.stop is not StopReason.CANCELLED}
    return found, len(everything) - len(found)
