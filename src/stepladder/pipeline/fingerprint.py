"""Fingerprints: a stage is stale when anything it was computed from has changed.

In: a recipe, and the marks on the pairs of its run. Out: the ingredients of each stage, under the names users know
(`stages.sft.num_train_epochs`, `data.train`), and a fingerprint of them. Files and folders count by content, not by
path. Device and batch size are not included: they change results only by rounding, so a run may be resumed on another
machine.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any

from stepladder.agents import Play, is_agent_file
from stepladder.core.errors import StepladderError
from stepladder.core.io.files import expand_path
from stepladder.data import DATA_SETS, data_files
from stepladder.data.data_config import DataConfig
from stepladder.models import NAMED, builtin_folder, is_gguf_file, is_model_folder
from stepladder.models.adapters import base_of, is_adapter
from stepladder.pipeline.recipe import Recipe, Stage
from stepladder.pipeline.resources import BASE, ORACLE, SERVER, PromptingConfig, SharedConfig
from stepladder.pipeline.stages import get_stage
from stepladder.retrieval.factory import retriever_info

Ingredients = dict[str, Any]

#: The ingredient of a stage with the ids of the marked pairs that it left out.
MARKED = "marked pairs left out"
_NO_MARKS: Mapping[str, frozenset[str]] = {}
#: Longer lists are shown by their length.
_LISTED = 8


def all_ingredients(recipe: Recipe, marked: Mapping[str, frozenset[str]] = _NO_MARKS) -> dict[str, Ingredients]:
    """The ingredients of each stage. A missing external file is an error. `marked`: of `marked_pairs`."""
    shared = {
        "seed": recipe.seed,
        "agent": agent_content(recipe.shared.agent),
        **_prompting_ingredients(recipe.shared),
        "dtype": recipe.shared.dtype,
        **dict(flat("search", _search_ingredients(recipe.shared))),
        **dict(flat("episode", recipe.shared.episode.model_dump(mode="json"))),
        **_data_ingredients(recipe.shared.data),
    }
    model = recipe.shared
    served = f"{model.served_model} behind a server ({model.server.api})" if model.server else ""
    needs_base = any(BASE in stage.inputs.values() for stage in recipe.stages) and model.engine != "openai"
    base = policy_content(model.policy) if needs_base else served
    found: dict[str, Ingredients] = {}
    for stage in recipe.stages:
        taken = [source for source in stage.inputs.values() if source not in (BASE, ORACLE, SERVER)]
        sources = {f"result of stage {name}": fingerprint(found[name]) for name in taken}
        writers = {*stage.inputs.values(), getattr(stage.settings, "sampled_by", None)}
        policy: Ingredients = {"policy": base} if BASE in writers else {}
        policy |= {"server": served} if SERVER in writers else {}
        policy |= _server_play(model) if SERVER in writers or (BASE in writers and model.engine == "openai") else {}
        kind = get_stage(stage.kind)
        version = {f"version of {stage.kind}": kind.version}
        free = {f"stages.{stage.name}.{setting}" for setting in kind.not_fingerprinted | stage.settings.inert()}
        plain = {"kind": stage.kind, **stage.inputs, **stage.settings.model_dump(mode="json")}
        own = {name: value for name, value in flat(f"stages.{stage.name}", plain) if name not in free}
        files = {f"stages.{stage.name}.{setting}": value for setting, value in _outside(stage).items()}
        ids = marked.get(stage.name)
        marks: Ingredients = {MARKED: sorted(ids)} if ids else {}
        found[stage.name] = {**own, **files, **shared, **policy, **sources, **version, **marks}
    return found


def fingerprint(ingredients: Ingredients) -> str:
    """Equal for equal ingredients, regardless of their order."""
    text = json.dumps(ingredients, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def changes(before: Ingredients, now: Ingredients) -> list[str]:
    """The differences, each as `name: old -> new`."""
    return [
        f"{name}: {_shown(before, name)} -> {_shown(now, name)}"
        for name in {**before, **now}
        if name not in before or name not in now or before[name] != now[name]
    ]


def _shown(ingredients: Ingredients, name: str) -> str:
    if name not in ingredients:
        return "nothing"
    value = ingredients[name]
    if isinstance(value, list) and len(value) > _LISTED:
        return f"{len(value):,} items, from {value[0]} to {value[-1]}"
    return value if isinstance(value, str) else json.dumps(value)


def flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The values of nested settings, under names with dots."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(f"{prefix}.{name}", value)
        else:
            yield f"{prefix}.{name}", value


def _outside(stage: Stage) -> Ingredients:
    """External files named by a stage's settings, by content."""
    paths = {setting: Path(getattr(stage.settings, setting) or "") for setting in get_stage(stage.kind).external_files}
    return {setting: f"content {content(path)}" for setting, path in paths.items() if path.name and path.exists()}


def agent_content(agent: str) -> str:
    """The identity of an agent: its name, or the content of its file."""
    return f"content {content(Path(agent))}" if is_agent_file(agent) else agent


def _search_ingredients(shared: SharedConfig) -> Ingredients:
    return shared.search.model_dump(mode="json", exclude={"device", "timeout"}, exclude_none=True)


def _prompting_ingredients(shared: SharedConfig) -> Ingredients:
    """How text is played, where it is not strict, and the texts and options that replace the agent's own."""
    prompting = shared.prompting
    play = prompting.play(shared.agent)
    files = {"prompt": prompting.prompt, "hint": prompting.hint}
    found: Ingredients = {} if play == Play() else {f"prompting.{name}": value for name, value in asdict(play).items()}
    for name, path in files.items():
        if path is not None:
            if not path.is_file():
                raise StepladderError(f"prompting.{name}: the file {path} does not exist")
            found[f"prompting.{name}"] = f"content {content(path)}"
    return found | ({"prompting.chat_options": prompting.chat_options} if prompting.chat_options else {})


def _server_play(shared: SharedConfig) -> Ingredients:
    """How the text of the server is played, where that is not the usual way."""
    play = shared.prompting.play(shared.agent, prompted=True)
    usual = PromptingConfig().play(shared.agent, prompted=True)
    return {} if play == usual else {f"prompting.{name} of the server": value for name, value in asdict(play).items()}


def policy_content(policy: str) -> str:
    """The identity of a model: the content of its files, or its name on the hub."""
    is_local = is_model_folder(policy) or (policy not in NAMED and is_gguf_file(expand_path(policy)))
    path = builtin_folder(policy) or (expand_path(policy) if is_local else None)
    if path is None:
        if policy[0] in "./~":  # not a hub name
            raise StepladderError(f"policy: the model {policy} does not exist")
        return policy
    if is_adapter(path):
        return f"content {content(path)} on {policy_content(base_of(path))}"
    if path.is_dir() and not (path / "config.json").is_file():
        raise StepladderError(f"policy: {path} is not a model folder: it has no config.json")
    return f"content {content(path)}"


def _data_ingredients(data: DataConfig) -> Ingredients:
    found: Ingredients = {f"data.{split}": _file_content(path) for split, path in data.files.items()}
    if data.name in DATA_SETS:
        found |= {"data.name": data.name, "data.world_seed": data.world_seed}
    elif data.name is not None:
        files = data_files(data.name)
        for path in files:
            key = "data.name" if len(files) == 1 else f"data.name.{path.parent.name}/{path.name}"
            found[key] = _file_content(path)
        if len(parts := data.name.split("+")) > 1 and not Path(data.name).exists():
            # The order of the sets decides the order of the questions; their location does not matter.
            found["data.joined"] = "+".join(part if part in DATA_SETS else Path(part).name for part in parts)
            if any(part in DATA_SETS for part in parts):
                found["data.world_seed"] = data.world_seed
    if data.holdout:
        found["data.holdout"] = data.holdout
    if data.warmup:
        found["data.warmup"] = data.warmup
    if data.train_questions is not None:
        found["data.train_questions"] = data.train_questions
    if data.index is not None:
        info = retriever_info(data.index)
        found["data.index"] = f"{info.kind} of content {info.checksum}" if info else data.index
        found |= dict(flat("data.index", info.settings)) if info else {}
    return found


def _file_content(path: Path) -> str:
    if not path.is_file():
        raise StepladderError(f"question file {path} does not exist")
    return f"content {content(path)}"


def content(path: Path) -> str:
    """A hash of a file, or of the names and contents of all files in a folder."""
    digest = blake2b(digest_size=16)
    for each in [path] if path.is_file() else sorted(path.rglob("*")):
        if each.is_file():
            if each != path:
                digest.update(os.fsencode(f"{each.relative_to(path).as_posix()}\0{each.stat().st_size}\0"))
            with each.open("rb") as file:
                file_digest(file, lambda: digest)
    return digest.hexdigest()
