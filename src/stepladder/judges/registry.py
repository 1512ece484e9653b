"""Judges and step scorers by name.

In: a name and options. Out: a judge for preference pairs (`make_judge`), or a step scorer (`make_scorer`). A module of
`stepladder.judges` or `stepladder.oracle` declares `JUDGES` or `SCORERS`, dictionaries from names to specs; a package
declares them in its `__init__.py`. Both packages are scanned on first use: adding a judge means adding a file.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, TypeVar

from pydantic import AfterValidator

from stepladder.core.registry import Registry
from stepladder.core.step_scorer import StepScorer
from stepladder.judges.base import Judge, JudgeOptions, JudgeSpec, ScorerOptions, ScorerSpec

Spec = TypeVar("Spec", JudgeSpec, ScorerSpec)
#: Packages whose modules may declare judges and scorers.
_PACKAGES = ("stepladder.judges", "stepladder.oracle")


@cache
def judges() -> Registry[JudgeSpec]:
    """The judges that recipes can name."""
    return _scan("judge", "JUDGES", JudgeSpec)


@cache
def scorers() -> Registry[ScorerSpec]:
    """The step scorers that recipes can name."""
    return _scan("step scorer", "SCORERS", ScorerSpec)


def make_judge(name: str, options: JudgeOptions | None = None) -> Judge:
    """Build a judge by name."""
    return judges().get(name).make(options or JudgeOptions())


def make_scorer(name: str, options: ScorerOptions | None = None) -> StepScorer:
    """Build a step scorer by name. Close it after use."""
    return scorers().get(name).make(options or ScorerOptions())


def _scan(what: str, attribute: str, spec: type[Spec]) -> Registry[Spec]:
    registry: Registry[Spec] = Registry(what)
    for package in _PACKAGES:
        for module in iter_modules(import_module(package).__path__, f"{package}."):
            for name, each in getattr(import_module(module.name), attribute, {}).items():
                assert isinstance(each, spec), f"{module.name}.{attribute}[{name!r}] must be a {spec.__name__}"
                registry.register(name, each, each.description)
    return registry


#: Types of settings: a name that is checked against the registry.
JudgeName = Annotated[str, AfterValidator(lambda name: judges().checked(name))]
ScorerName = Annotated[str, AfterValidator(lambda name: scorers().checked(name))]
