"""The contract of a stage: a function from settings, a context and the outputs of earlier stages to a folder.

A stage takes things of some roles (a policy, later also trees, pairs or a reward model) and makes things of some
roles. Who feeds whom follows from that: each role is taken from the newest stage before that makes it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepladder.core.config import Config
from stepladder.pipeline.resources import RunContext

#: The role of a reward model, which one kind of stage makes and several take.
REWARD = "reward"


@dataclass(frozen=True, slots=True)
class Task:
    """What one stage of one run has to do, apart from its settings."""

    #: The stage's name in the recipe.
    name: str
    #: Where to write. What an attempt that was cut left there is still there: go on from it.
    folder: Path
    seed: int
    #: By role: the path (or name) of what is taken.
    inputs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage hands back: numbers for the reader, and where its outputs lie, by role."""

    summary: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One kind of stage, as the registry knows it."""

    settings: type[Config]
    #: (settings, context, task) -> result. The settings are of the class above.
    run: Callable[[Any, RunContext, Task], StageResult]
    #: Roles that it takes, but for those that its settings leave out.
    takes: tuple[str, ...] = ("policy",)
    makes: tuple[str, ...] = ()
    #: settings -> the roles that are left out, for kinds that do not always need everything they may take.
    leaves_out: Callable[[Any], frozenset[str]] = lambda settings: frozenset()  # noqa: ARG005
    #: (settings, context): raises where the stage could not be run, before the first stage of a run begins.
    check: Callable[[Any, RunContext], None] = lambda settings, context: None  # noqa: ARG005
    #: Whether `policy: gold`, the oracle, may be taken.
    plays_gold: bool = False
    #: Settings that name a file or folder outside of the run: these count by their content.
    reads: tuple[str, ...] = ()
    #: Files in the stage's folder that hold under any settings, such as replies that were paid for.
    keeps: tuple[str, ...] = ()
    #: Settings that change what a stage costs and not what comes out, such as a budget: they may differ from attempt to
    #: attempt. A setting of a group is named with a dot.
    free: frozenset[str] = frozenset()
    #: settings -> those that have no effect beside the others. They may differ too; runs that do not know them hold.
    idle: Callable[[Any], frozenset[str]] = lambda settings: frozenset()  # noqa: ARG005
    #: Raise it when the same settings give another result: done stages are then recomputed.
    version: int = 1
