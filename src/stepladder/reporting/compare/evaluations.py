"""What is compared: evaluations of runs, and evaluations that `stepladder eval --out` saved.

In: `[LABEL=]PATH[:STAGE]` as it is typed. Out: a `Source` each: its rows, and what tells it from others. Of a run the
last evaluation counts whose policy is not the oracle; `:STAGE` names another one, `:*` takes all of them.
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
from stepladder.evaluate.evaluator import load_scores
from stepladder.pipeline.recipe import Stage
from stepladder.pipeline.resources import BASE, ORACLE
from stepladder.pipeline.run_folder import RunFolder
from stepladder.pipeline.stage import EVALUATION, REWARD
from stepladder.pipeline.stages import get_stage
from stepladder.reporting.compare.provenance import Lineages, Training, origin_of

_ALL = "*"
_RUN, _SCORES, _SUMMARY = "run.json", "scores.jsonl", "summary.json"
#: What a saved evaluation says of itself that makes it another way to answer.
_DESCRIPTION = ("agent", "engine", "base_url", "api", "data", "world_seed", "split", "limit", "index", "settings")


@dataclass(frozen=True, slots=True)
class Source:
    """One evaluation."""

    #: What the user calls it; None where nothing was said.
    label: str | None
    #: Where it is, as it would be typed.
    place: str
    #: The recipe's name, or the folder's where no recipe is known.
    name: str
    stage: str
    agent: str
    #: Of the training, or of the evaluation where no training is known.
    seed: int | None
    #: Equal for sources that differ by their seed alone.
    alike: str
    #: By question, those that were reached.
    rows: Mapping[str, QuestionScore]
    #: Questions that were not reached because the evaluation was interrupted.
    cancelled: int
    #: None where no run trained what was evaluated.
    training: Training | None


def open_sources(texts: Sequence[str], stage: str | None = None) -> list[Source]:
    """The evaluations that were named, in their order. `stage`: which one of a run, where the text does not say."""
    found: dict[str, Source] = {}
    lineages = Lineages()
    for text in texts:
        for source in _open(text, stage, lineages):
            if source.place in found:
                raise StepladderError(f"{source.place} is named twice; name each evaluation once")
            found[source.place] = source
    return list(found.values())


def parts_of(text: str) -> tuple[str | None, Path, str | None]:
    """Label, path and stage. What is there as a whole is a path, whatever characters it has.

    >>> parts_of("mine=runs/nano:after")
    ('mine', PosixPath('runs/nano'), 'after')
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


def _open(text: str, stage: str | None, lineages: Lineages) -> list[Source]:
    label, path, named = parts_of(text)
    if (path / _RUN).is_file():
        return _of_run(label, path, named or stage, lineages)
    if not (path / _SCORES).is_file():
        found = "has neither run.json nor scores.jsonl" if path.is_dir() else "does not exist"
        raise StepladderError(
            f"{path} {found}; expected a run (`stepladder run RECIPE --out DIR`) or a saved evaluation "
            "(`stepladder eval --out DIR`)"
        )
    if named is not None:
        raise StepladderError(f"{text}: {path} is one evaluation and has no stages; leave out ':{named}'")
    return [_saved(label, path, lineages)]


# --- runs -------------------------------------------------------------------------------------------------------


def _of_run(label: str | None, path: Path, named: str | None, lineages: Lineages) -> list[Source]:
    run = RunFolder.open(path)
    stages = [stage for stage in run.recipe().stages if EVALUATION in get_stage(stage.kind).outputs]
    if not stages:
        raise StepladderError(f"the recipe of the run {path} has no evaluation: add a stage of kind eval to it")
    if named == _ALL:
        done = [stage for stage in stages if run.done(stage.name) is not None]
        if not done:
            raise StepladderError(f"no evaluation of the run {path} is done: go on with it")
        sources = [_evaluated(None, run, stage, lineages) for stage in done]
        # One label for several: each is told by its stage as well.
        return [replace(each, label=f"{label} {each.stage}" if label else None) for each in sources]
    if named is not None:
        chosen = next((stage for stage in stages if stage.name == named), None)
        if chosen is None:
            raise unknown_name(f"evaluation of the run {path}", named, [stage.name for stage in stages])
    else:
        played = [stage for stage in stages if stage.inputs["policy"] != ORACLE]
        if not played:
            raise StepladderError(f"the run {path} evaluates only the oracle: name it, {path}:{stages[-1].name}")
        chosen = played[-1]
    return [_evaluated(label, run, chosen, lineages)]


def _evaluated(label: str | None, run: RunFolder, stage: Stage, lineages: Lineages) -> Source:
    if run.done(stage.name) is None:
        evaluations = (each.name for each in run.recipe().stages if EVALUATION in get_stage(each.kind).outputs)
        others = [name for name in evaluations if run.done(name) is not None]
        rather = f", or compare another evaluation of it: {run.path}:{others[-1]}" if others else ""
        raise StepladderError(f"the stage '{stage.name}' of the run {run.path} is not done: go on with the run{rather}")
    recipe, policy = run.recipe(), stage.inputs["policy"]
    guides = [(run.path, source) for role, source in stage.inputs.items() if role == REWARD]
    origin = origin_of(recipe.shared.policy) if policy == BASE else (run.path, policy) if policy != ORACLE else None
    training = None if origin is None else lineages.training_from([origin, *guides])
    stages = [] if training is None else training.names_in(run.path)
    plain = recipe.plain()
    made_from = {
        **{name: value for name, value in plain.items() if name not in ("seed", "device", "batch_size", "stages")},
        "stages": {name: plain["stages"][name] for name in (*stages, stage.name)},
    }
    rows = load_scores(run.path / stage.name / EVALUATION)
    return Source(
        label,
        f"{run.path}:{stage.name}",
        recipe.name,
        stage.name,
        recipe.shared.agent,
        recipe.seed,
        json.dumps(made_from, sort_keys=True),
        *_reached(rows),
        training,
    )


# --- saved evaluations ------------------------------------------------------------------------------------------


def _saved(label: str | None, path: Path, lineages: Lineages) -> Source:
    """An evaluation on its own. Where a run made what was evaluated, its recipe and seed are known."""
    described = _description(path)
    model = described.get("model", described.get("policy"))
    own: dict[str, Any] = {name: described.get(name) for name in _DESCRIPTION}
    name, seed = path.resolve().name, described.get("seed")
    training: Training | None = None
    guide = described.get("guide") or {}
    guiding = origin_of(guide.get("reward"))
    own["guide"] = {**guide, "reward": guide.get("reward") and _made_as(guiding, lineages)}
    if isinstance(model, str) and (origin := origin_of(expand_path(model))) is not None:
        training = lineages.training_from([origin, *([guiding] if guiding else [])])
        recipe = RunFolder.open(origin[0]).recipe()
        plain = recipe.plain()["stages"]
        own |= {"model": [recipe.name, {each: plain[each] for each in training.names_in(origin[0])}], "seed": seed}
        name, seed = recipe.name, recipe.seed
    else:
        own["model"] = model
    return Source(
        label,
        str(path),
        name,
        path.resolve().name,
        str(described.get("agent", "")),
        seed if isinstance(seed, int) else None,
        json.dumps(own, sort_keys=True),
        *_reached(load_scores(path)),
        training,
    )


def _made_as(origin: tuple[Path, str] | None, lineages: Lineages) -> object:
    """How something was made that a run has made: the same for all seeds. A folder of no run is what it is."""
    if origin is None:
        return "of no run"
    recipe = RunFolder.open(origin[0]).recipe()
    plain = recipe.plain()["stages"]
    return [recipe.name, {each: plain[each] for each in lineages.training_from([origin]).names_in(origin[0])}]


def _description(path: Path) -> dict[str, Any]:
    file = path / _SUMMARY
    if not file.is_file():
        raise StepladderError(f"{path} is not a saved evaluation: it has no {_SUMMARY}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StepladderError(f"{file} is damaged: expected a JSON object: {error}") from error
    if not isinstance(data, dict):
        raise StepladderError(f"{file} is damaged: expected a JSON object")
    return data


def _reached(rows: Iterable[QuestionScore]) -> tuple[dict[str, QuestionScore], int]:
    """Rows by question, and how many were not reached."""
    everything = list(rows)
    reached = {row.question_id: row for row in everything if row.stop is not StopReason.CANCELLED}
    return reached, len(everything) - len(reached)
