"""Stages: the kinds of work that a recipe can name. Adding one is a module with a `KIND`, and a line here."""

from importlib import import_module

from stepladder.core.errors import unknown_name
from stepladder.pipeline.stage import StageResult, StageSpec, Task

__all__ = ["KINDS", "StageResult", "StageSpec", "Task", "stage_kind"]

#: Kinds by name: the module that holds it as `KIND`, imported when it is used, or the kind itself.
KINDS: dict[str, str | StageSpec] = {
    "dpo": "stepladder.pipeline.stages.dpo",
    "eval": "stepladder.pipeline.stages.eval",
    "explore": "stepladder.pipeline.stages.explore",
    "grpo": "stepladder.pipeline.stages.grpo",
    "pairs": "stepladder.pipeline.stages.pairs",
    "pairs-file": "stepladder.pipeline.stages.pairs_file",
    "prm": "stepladder.pipeline.stages.prm",
    "prm-eval": "stepladder.pipeline.stages.prm_eval",
    "rank": "stepladder.pipeline.stages.rank",
    "rft": "stepladder.pipeline.stages.rft",
    "sft": "stepladder.pipeline.stages.sft",
}


def stage_kind(name: str) -> StageSpec:
    """The kind of that name."""
    if name not in KINDS:
        raise unknown_name("kind of stage", name, KINDS)
    found = KINDS[name]
    if isinstance(found, StageSpec):
        return found
    kind = import_module(found).KIND
    assert isinstance(kind, StageSpec)
    return kind
