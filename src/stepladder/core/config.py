"""The base class of all settings: typed, frozen, and strict about names.

In: plain data, as parsed from YAML. Out: a validated object, or a `StepladderError` that names the field, the value
found, the value expected and, for an unknown key, the nearest valid one.
"""

import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from stepladder.core.errors import StepladderError, nearest
from stepladder.core.io.masking import hide
from stepladder.core.unicode import without_surrogates
from stepladder.core.unused_settings import UnusedSetting, UnusedValue, refuse_unused, without_setting


class _WrongField(ValueError):
    """Raised by a validator of the whole model, for which pydantic does not report the field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


class Config(BaseModel):
    """Subclass it with typed fields and defaults. Unknown keys are errors.

    >>> class Warmup(Config):
    ...     epochs: int = 3
    >>> Warmup.read({"epochs": 5})
    Warmup(epochs=5)
    >>> Warmup.read({"epoch": 5}, "r.yaml: stages.sft")
    Traceback (most recent call last):
    stepladder.core.errors.StepladderError: r.yaml: stages.sft.epoch: unknown key. Did you mean 'epochs'? Known: epochs
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    #: Former names of fields: old -> new. A former name is an error that gives the new one.
    renamed: ClassVar[Mapping[str, str]] = {}
    #: Former values of fields: field -> old -> new.
    renamed_values: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _reject_bool_for_number(cls, data: Any) -> Any:
        # pydantic reads true as 1 and YAML reads `yes` as true: `limit: yes` would mean one question.
        for name, value in data.items() if isinstance(data, Mapping) else ():
            if isinstance(value, bool) and name in cls.model_fields:
                types = union_members(cls.model_fields[name].annotation)
                if bool not in types and not {int, float}.isdisjoint(types):
                    raise _WrongField(name, f"expected a number, found {str(value).lower()}")
        return data

    @model_validator(mode="before")
    @classmethod
    def _hide_secrets(cls, data: Any) -> Any:
        # Whatever shows, stores or fingerprints settings must not see a password.
        if not isinstance(data, Mapping):
            return data
        return {name: hide(value) if isinstance(value, str) else value for name, value in data.items()}

    def inert(self) -> frozenset[str]:
        """Names of settings that do not change the result. A stage's fingerprint leaves them out."""
        return frozenset()

    def unused(self) -> Mapping[str, str]:
        """Settings that have no effect beside the others, each with the reason; nested ones are named with a dot.

        They are refused if the user gave them.
        """
        return {}

    def effective(self) -> dict[str, Any]:
        """Plain data without the settings that have no effect."""
        plain = self.model_dump(mode="json")
        nested = {name: value for name, value in self if isinstance(value, Config)}
        plain |= {name: value.effective() for name, value in nested.items()}
        for name in self.unused():
            plain = without_setting(plain, name.split("."))
        return plain

    @model_validator(mode="after")
    def _refuse_unused(self) -> Self:
        refuse_unused(self, self.unused())
        return self

    @classmethod
    def read(cls, data: object, where: str = "") -> Self:
        """Config from plain data. `where` prefixes field names in errors, as in `recipe.yaml: stages.sft`."""
        if not isinstance(data, Mapping):
            raise StepladderError(
                f"{where or cls.__name__}: expected settings as `name: value`, found {_preview(data)}"
            )
        try:
            return cls.model_validate(without_surrogates(dict(data)))
        except ValidationError as error:
            message, first = _explain(error, cls, where), error.errors()[0]
            if isinstance(problem := first.get("ctx", {}).get("error"), UnusedValue):
                path = _follow(first["loc"], cls)[0]
                raise UnusedSetting(message, tuple(".".join([*path, name]) for name in problem.names)) from error
            raise StepladderError(message) from error


def unknown_key(where: str, key: str, known: Sequence[str], config: type[Config] = Config) -> StepladderError:
    """The error for an unknown key: its new name if `config` has renamed it, or else the nearest known key."""
    if key in config.renamed:
        return StepladderError(f"{key_path(where, key)}: renamed to '{config.renamed[key]}'")
    return StepladderError(f"{key_path(where, key)}: unknown key.{nearest(key, known)} Known: {', '.join(known)}")


def key_path(where: str, key: str) -> str:
    """The full name of a key, for error messages.

    >>> key_path("", "seed"), key_path("recipe.yaml", "seed"), key_path("recipe.yaml: data", "name")
    ('seed', 'recipe.yaml: seed', 'recipe.yaml: data.name')
    """
    if not where:
        return key
    return f"{where}.{key}" if ": " in where else f"{where}: {key}"


def _explain(error: ValidationError, cls: type[Config], where: str) -> str:
    """The first validation error, in one line."""
    first, *others = error.errors()
    path, model = _follow(first["loc"], cls)
    context = first.get("ctx", {})
    problem = context.get("error")
    if isinstance(problem, _WrongField):
        path.append(problem.field)
    name = key_path(where, ".".join(path)) if path else where or cls.__name__
    match first["type"]:
        case "extra_forbidden":
            parent = key_path(where, ".".join(path[:-1])) if path[:-1] else where
            return str(unknown_key(parent, path[-1], list(model.model_fields), model))
        case "missing":
            return f"{name}: is missing"
        case "value_error":  # raised by our own validators, with a complete message
            return f"{name}: {problem}"
        case _:
            # A union has one error per member: list all of them.
            same = [each for each in others if _follow(each["loc"], cls)[0] == path]
            wanted = " or ".join(dict.fromkeys(expected(each["msg"]) for each in (first, *same)))
            value = first["input"]
            hint = ""
            if isinstance(value, str):
                new = model.renamed_values.get(path[-1], {}).get(value)
                near = nearest(value, re.findall(r"'(.*?)'", wanted))
                hint = f", which was renamed to '{new}'" if new else near and f".{near}"
            return f"{name}: expected {wanted}, found {_preview(value)}{hint}"


#: pydantic's wording, and its replacement for users who write YAML.
_REWORDINGS = (
    (r"^Input should be ", ""),
    (r", unable to parse .*| or instance of \w+$", ""),
    (r"a valid (dictionary|mapping)", "settings as `name: value`"),
    (r"a valid (tuple|list)", "a list"),
    (r"a valid ", "a "),
    (r"\ba integer", "an integer"),
    (r"^String should have ", "a string with "),
    (r"^Keys should be strings$", "a string as key"),
    (r"^could not (parse value and unit from byte string|interpret byte unit: .*)$", "an amount such as 500MB or 2GB"),
)


def expected(message: str) -> str:
    """The expected value from pydantic's message, reworded.

    >>> expected("Input should be a valid integer, unable to parse string as an integer")
    'an integer'
    """
    for pattern, plain in _REWORDINGS:
        message = re.sub(pattern, plain, message)
    return message


def _preview(value: object) -> str:
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _follow(location: Sequence[str | int], cls: type[Config]) -> tuple[list[str], type[Config]]:
    """Follow pydantic's error location: the path as the user wrote it, and the model that contains its last key.

    pydantic's locations have an extra part for the member of a union that was tried.
    """
    path: list[str] = []
    model = cls
    kinds: tuple[Any, ...] = (cls,)
    for part in location:
        if nested := next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Config)), None):
            model, field = nested, nested.model_fields.get(str(part))
            kinds = tuple(kind for kind in union_members(field.annotation) if kind is not NoneType) if field else ()
        elif len(kinds) > 1 and isinstance(part, str):
            continue
        else:  # the items of a list, the values of a mapping
            items = [each for kind in kinds for each in get_args(kind) if each is not Ellipsis]
            kinds = union_members(items[-1]) if items else ()
        path.append(str(part))
    return path, model


def union_members(kind: Any) -> tuple[Any, ...]:
    """The members of a union; any other type is its only member."""
    if get_origin(kind) is Annotated:
        return union_members(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        return tuple(each for member in get_args(kind) for each in union_members(member))
    return (kind,)
