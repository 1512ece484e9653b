"""Stages: the kinds of work that a recipe can name. Adding one is a module with a `KIND`, and a line here."""

from importlib import import_module

from stepladder.errors import unknown_name
from stepladder.stages.base import StageKind, StageResult, Task

__all__ = ["KINDS", "StageKind", "StageResult", "Task", "stage_kind"]

#: Kinds by name: the module that holds it as `KIND`, imported when it is used, or the kind itself.
KINDS: dict[str, str | StageKind] = {
    "dpo": "stepladder.stages.dpo",
    "eval": "stepladder.stages.evaluation",
    "explore": "stepladder.stages.explore",
    "grpo": "stepladder.stages.grpo",
    "pairs": "stepladder.stages.pairs",
    "pairs-file": "stepladder.stages.pairs_file",
    "prm": "stepladder.stages.prm",
    "prm-eval": "stepladder.stages.prm_eval",
    "rank": "stepladder.stages.rank",
    "rft": "stepladder.stages.rft",
    "sft": "stepladder.stages.sft",
}


def stage_kind(name: str) -> StageKind:
    """The kind of that name."""
    if name not in KINDS:
        raise unknown_name("kind of stage", name, KINDS)
    found = KINDS[name]
    if isinstance(found, StageKind):
        return found
    kind = import_module(found).KIND
    assert isinstance(kind, StageKind)
    return kind
