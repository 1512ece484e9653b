"""Recipes: which stages, in which order, with which settings.

In: a YAML file or the name of a built-in recipe, and overrides such as `stages.sft.num_train_epochs=5`. Out: a `Recipe`
with every value filled in and the inputs of every stage resolved, or an error that names the file, the key, the value
found and the value expected.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from stepladder.core.config import Config, key_path, unknown_key
from stepladder.core.errors import StepladderError, UnknownName, nearest, unknown_name
from stepladder.core.io.files import expand_path
from stepladder.core.io.masking import masked
from stepladder.core.seeding import seed_of
from stepladder.core.unused_settings import UnusedSetting, without_setting
from stepladder.pipeline.resources import BASE, ORACLE, SERVER, SharedConfig
from stepladder.pipeline.stages import STAGES, StageSpec, get_stage

#: A stage's name is the name of its folder: letters that every file system distinguishes.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")

#: Former names of stages of the shipped recipes, and of the oracle.
_RENAMED = {
    "after": ("eval-sft",),
    "refined": ("eval-rft", "eval-dpo"),
    "trained": ("eval-grpo",),
    "examined": ("eval-prm",),
    "gold": (ORACLE,),
}


class MissingInput(StepladderError):
    """A stage needs an input of a role that no earlier stage writes."""

    def __init__(self, message: str, role: str) -> None:
        super().__init__(message)
        self.role = role


class _RecipeFile(SharedConfig):
    """A recipe file as written."""

    name: str = "run"
    seed: int = 0
    stages: dict[str, dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a recipe."""

    name: str
    kind: str
    #: By role: the stage an input is taken from; for a policy also `base` (the recipe's policy) or `oracle`.
    inputs: Mapping[str, str]
    settings: Config

    def plain(self) -> dict[str, Any]:
        """The entry of a recipe file: every setting that has an effect."""
        return {"kind": self.kind, **self.inputs, **self.settings.effective()}


@dataclass(frozen=True, slots=True)
class Recipe:
    """The stages of a run with all settings."""

    name: str
    seed: int
    shared: SharedConfig
    stages: tuple[Stage, ...]
    #: Settings of the file that have no effect beside the overrides.
    left_out: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def read(
        cls,
        data: object,
        where: str = "recipe",
        leave_out: Callable[[str], bool] = lambda key: False,  # noqa: ARG005
    ) -> "Recipe":
        """A recipe from plain data. `where` is the prefix of error messages.

        A setting without effect, such as `stages.grpo.min_std`, is an error unless `leave_out` accepts to drop it.
        """
        written = _RecipeFile.read(data, where)
        if not written.stages:
            raise StepladderError(f"{where}: stages: expected at least one stage, found none")
        stages: list[Stage] = []
        left_out: list[str] = []
        for name, entry in written.stages.items():
            while True:
                try:
                    stages.append(_read_stage(name, entry or {}, stages, where))
                    _check_server(stages[-1], written, key_path(where, f"stages.{name}"))
                    break
                except UnusedSetting as error:
                    dropped = [each for each in error.names if leave_out(f"stages.{name}.{each}")]
                    if not dropped:
                        raise
                    left_out += [f"stages.{name}.{each}" for each in dropped]
                    for each in dropped:
                        entry = without_setting(entry or {}, each.split("."))
        shared = SharedConfig(**{name: getattr(written, name) for name in SharedConfig.model_fields})
        return cls(written.name, written.seed, shared, tuple(stages), tuple(left_out))

    def stage_seed(self, stage: str) -> int:
        """The seed of a stage: 31 bits, because numpy's generators take at most 32."""
        return seed_of(self.seed, stage) % 2**31

    def plain(self) -> dict[str, Any]:
        """Plain data with every value, as in YAML."""
        return {
            "name": self.name,
            "seed": self.seed,
            **self.shared.plain(),
            "stages": {stage.name: stage.plain() for stage in self.stages},
        }

    def as_yaml(self) -> str:
        """The text of a recipe file equal to this recipe."""
        text: str = yaml.safe_dump(masked(self.plain()), sort_keys=False, allow_unicode=True)
        return text


def load_recipe(
    source: str | Path | Mapping[str, Any], overrides: Iterable[str] = (), defaults: Iterable[str] = ()
) -> Recipe:
    """The recipe in a file, the built-in recipe of this name or a recipe as plain data, with overrides in order.

    `defaults` are overrides that come first, and are left out where they have no effect.
    """
    path = Path("recipe") if isinstance(source, Mapping) else find_recipe(source)
    data = source if isinstance(source, Mapping) else read_yaml(path)
    given = tuple(overrides)
    changes = (*defaults, *given)
    for change in changes:
        data = override(data, change)

    def leave_out(key: str) -> bool:
        """Whether an override changed the stage of a setting, and not the setting itself."""
        stage = ".".join(key.split(".")[:2])
        return any(change.strip().startswith(f"{stage}.") for change in changes) and not any(
            f"{key}.".startswith(f"{change.partition('=')[0].strip()}.") for change in given
        )

    return Recipe.read(data, f"{path.name} with --set {' '.join(changes)}" if changes else str(path), leave_out)


# --- finding recipes --------------------------------------------------------------------------------------------


def find_recipe(source: str | Path) -> Path:
    """The file of a recipe, by path or by name."""
    path = expand_path(source)
    if path.is_file():
        if path.suffix not in (".yaml", ".yml"):
            raise StepladderError(
                f"{path} is not a recipe file (.yaml). `stepladder recipes` lists the built-in ones; to train on "
                "your own questions: `stepladder run your-data --set data.name=FILE --set data.index=DIR --out DIR`"
            )
        return path
    if str(source) in shipped():  # also if a folder has this name: `run NAME --out NAME` is common
        return shipped()[str(source)]
    if path.is_dir():
        raise StepladderError(f"{path} is a folder; expected a recipe file (.yaml) or one of: {', '.join(shipped())}")
    if isinstance(source, Path) or path.suffix or len(path.parts) > 1:
        raise StepladderError(f"recipe file {path} does not exist. Built-in recipes: {', '.join(shipped())}")
    raise unknown_name("recipe", source, shipped())


def shipped() -> dict[str, Path]:
    """The built-in recipes, by name."""
    here = Path(__file__).parents[1]
    installed, checkout = here / "recipes", here.parents[1] / "recipes"
    files = (installed if installed.is_dir() else checkout).glob("*.yaml")
    return {path.stem: path for path in sorted(files, key=lambda path: path.stem)}


# --- YAML -------------------------------------------------------------------------------------------------------


#: In a recipe.
_MOST_VALUES = 10_000


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A safe loader that rejects duplicate keys, where YAML would keep the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key '{key.value}' is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def read_yaml(path: Path) -> object:
    """The plain data of a YAML file."""
    try:
        return _parse(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise StepladderError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise StepladderError(f"{place}: not YAML: {problem}") from error


def _parse(text: str) -> object:
    try:
        data = yaml.load(text, _Loader)  # a SafeLoader
    except (ValueError, RecursionError) as error:  # a date with a thirteenth month, thousands of brackets
        raise yaml.YAMLError(f"invalid value: {error}") from error
    left, seen = [data], 0  # aliases can make a few lines endless
    while left:
        value = left.pop()
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        seen += 1
        if seen + len(left) > _MOST_VALUES:
            raise yaml.YAMLError(f"more than {_MOST_VALUES:,} values, counting those of aliases (*name) each time")
    return data


def override(data: object, change: str, within: Sequence[str] = ()) -> object:
    """The data of a recipe with one value changed by `a.b=c`: c is parsed as YAML, a is a key below `within`.

    >>> override({"search": {"k": 3}}, "search.k=1")
    {'search': {'k': 1}}
    """
    path, value = split_override(change)
    keys = [*within, *path.split(".")]
    stages = data.get("stages") if isinstance(data, dict) else None
    known = [str(name) for name in stages] if isinstance(stages, dict) else []
    if len(keys) > 1 and keys[0] in known and keys[0] not in _RecipeFile.model_fields:
        raise StepladderError(f"--set {change}: {keys[0]} is a stage: type --set stages.{change}")
    if keys[0] == "stages" and len(keys) > 1 and isinstance(data, dict) and keys[1] not in known:
        # A misspelled name must not create a new stage.
        if new := _new_name(keys[1], known):
            raise StepladderError(f"--set {change}: stage '{keys[1]}' was{new}")
        raise unknown_name(f"stage in --set {change}:", keys[1], known)
    return with_value(data, keys, value, f"--set {change}")


def split_override(change: str) -> tuple[str, object]:
    """The key and the value of `a.b=c`; c is parsed as YAML.

    >>> split_override("search.k=1")
    ('search.k', 1)
    """
    path, equals, text = change.partition("=")
    if not equals or not all(path.strip().split(".")):
        raise StepladderError(f"--set {change}: expected NAME=VALUE, such as --set search.k=1")
    try:
        return path.strip(), _parse(text)
    except yaml.YAMLError as error:
        raise StepladderError(f"--set {change}: the value is not valid YAML; put it in quotes") from error


def join_override(path: str, value: object) -> str:
    """The reverse of `split_override`.

    >>> join_override("stages.sft", {"learning_rate": 1e-5})
    'stages.sft={learning_rate: 1.0e-05}'
    """
    text: str = yaml.safe_dump([value], default_flow_style=True, width=float("inf"), sort_keys=False)
    return f"{path}={text.strip()[1:-1]}"


def with_value(data: object, keys: Sequence[str], value: object, where: str = "") -> object:
    """The data with one value changed; missing parent groups are created."""
    if not keys:
        return value
    if data is not None and not isinstance(data, dict):
        raise StepladderError(f"{where}: '{keys[0]}' is no part of the value {data!r}")
    inside = data or {}
    return {**inside, keys[0]: with_value(inside.get(keys[0]), keys[1:], value, where)}


# --- stages -----------------------------------------------------------------------------------------------------


def _read_stage(name: str, entry: Mapping[str, Any], before: list[Stage], where: str) -> Stage:
    """One stage, with its inputs resolved to earlier stages."""
    here = key_path(where, f"stages.{name}")
    if not _NAME.fullmatch(name):
        raise StepladderError(f"{here}: a stage name has lower-case letters, digits, - and _")
    kind_name = entry.get("kind", name)
    try:
        kind = get_stage(str(kind_name))
    except UnknownName as error:
        advice = "" if "kind" in entry else f" Add `kind:` with one of: {', '.join(sorted(STAGES))}."
        raise StepladderError(f"{here}: {error}.{advice}") from error
    if name in (BASE, ORACLE, SERVER) and "policy" in kind.outputs:
        raise StepladderError(f"{here}: a stage that trains a policy cannot be called {BASE}, {ORACLE} or {SERVER}")
    own = {key: value for key, value in entry.items() if key != "kind" and key not in kind.inputs}
    for key in own:
        if key not in kind.config.model_fields:
            raise unknown_key(here, key, ["kind", *kind.inputs, *kind.config.model_fields], kind.config)
    settings = kind.config.read(own, here)
    left_out = kind.unused_inputs(settings)
    for role in left_out:
        if entry.get(role) is not None:
            raise StepladderError(f"{key_path(here, role)}: these settings take no {role}; found {entry[role]!r}")
    inputs = {role: _source(role, entry.get(role), kind, before, here) for role in kind.inputs if role not in left_out}
    if kind.compares:
        _check_origin(inputs["policy"], before, here)
    return Stage(name, str(kind_name), inputs, settings)


def _check_origin(source: str, before: Sequence[Stage], here: str) -> None:
    """Raise if a policy to compare was not trained from the policy of another stage."""
    origins = {stage.name: stage.inputs.get("policy") for stage in before}
    if origins.get(source) not in origins:
        raise StepladderError(
            f"{key_path(here, 'policy')}: expected a stage that was trained from the policy of an earlier stage, to "
            f"compare the two; found {source!r}, which starts from the recipe's own policy"
        )


def _check_server(stage: Stage, shared: SharedConfig, here: str) -> None:
    """Raise if a stage is played by a server that is not given, or trains a model behind one."""
    source = stage.inputs.get("policy")
    if source == SERVER and shared.server is None:
        raise StepladderError(
            f"{key_path(here, 'policy')}: the recipe has no server: add server.model and server.base_url"
        )
    if source == BASE and shared.engine == "openai" and not get_stage(stage.kind).accepts_server:
        raise StepladderError(
            f"{here}: the policy {shared.policy!r} is behind a server (engine: openai) and cannot be trained: set "
            "policy to a local model, engine to transformers, and `policy: server` in the stages that the server plays"
        )


def _source(role: str, named: object, kind: StageSpec, before: list[Stage], here: str) -> str:
    """The source of an input: the named stage, else the newest stage that writes this role, else the base policy."""
    makers = [stage.name for stage in before if role in get_stage(stage.kind).outputs]
    others = [] if role != "policy" else [BASE]
    others += [ORACLE] if others and kind.accepts_oracle else []
    others += [SERVER] if others and kind.accepts_server else []
    if named is None:
        if makers:
            return makers[-1]
        if others:
            return BASE
        raise MissingInput(f"{here}: needs {role}, and no earlier stage writes any", role)
    if named not in (*others, *makers):
        known = [*others, *makers]
        new = _new_name(named, [*known, *(stage.name for stage in before)])
        hint = f":{new}" if new else f".{nearest(str(named), known)}"
        raise StepladderError(
            f"{key_path(here, role)}: expected {' or '.join(known)} (an earlier stage that writes {role}), "
            f"found {named!r}{hint}"
        )
    return str(named)


def _new_name(name: object, known: Sequence[str]) -> str:
    """The end of an error message if a name was renamed to a known one."""
    return next((f" renamed to '{new}'" for new in _RENAMED.get(str(name), ()) if new in known), "")
