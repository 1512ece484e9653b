"""Settings without effect beside the others are refused, with the reason.

In: a validated config and what its `unused()` says: the names of settings without effect, each with the reason. Out: an
error for those that the user gave. Defaults are never refused.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from stepladder.core.errors import StepladderError


class UnusedValue(ValueError):
    """Raised by a validator: these settings were given, and have no effect."""

    def __init__(self, names: tuple[str, ...], reason: str) -> None:
        verb, pronoun = ("has", "it") if len(names) == 1 else ("have", "them")
        super().__init__(f"{', '.join(names)} {verb} no effect {reason}: remove {pronoun}")
        self.names = names


class UnusedSetting(StepladderError):
    """Settings without effect; `names` are their paths below the settings that were read."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names


def refuse_unused(config: BaseModel, unused: Mapping[str, str]) -> None:
    """Raise if the user gave one of the unused settings: name -> reason."""
    given = {name: reason for name, reason in unused.items() if _is_given(config, name)}
    if given:
        reason = next(iter(given.values()))
        raise UnusedValue(tuple(name for name in given if given[name] == reason), reason)


def without_setting(data: Mapping[str, Any], path: Sequence[str]) -> dict[str, Any]:
    """Plain data without one setting, if it is there.

    >>> without_setting({"mode": "dual", "tree": {"stems": 2, "credit": "gains"}}, ["tree", "stems"])
    {'mode': 'dual', 'tree': {'credit': 'gains'}}
    """
    name, *rest = path
    if not rest or name not in data:
        return {key: value for key, value in data.items() if key != name}
    return {**data, name: without_setting(data[name], rest)}


def _is_given(config: Any, name: str) -> bool:
    """Whether the user gave a setting; that of a nested config has a dot in its name."""
    head, _, rest = name.partition(".")
    return head in config.model_fields_set and (not rest or _is_given(getattr(config, head), rest))
